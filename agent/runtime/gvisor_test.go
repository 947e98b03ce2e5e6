package runtime

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"errors"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	utilexec "k8s.io/utils/exec"

	"github.com/shoal-project/shoal/agent/container"
	"github.com/shoal-project/shoal/agent/oci"
)

// runsc is gVisor's runtime, which `make gvisor` builds: it is too big for every day.
func runsc(t *testing.T) string {
	t.Helper()
	if path, err := filepath.Abs("../../bin/runsc"); err == nil {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	path, err := exec.LookPath("runsc")
	if err != nil {
		t.Skip("gVisor's runsc is not here: `make gvisor` builds it and runs this")
	}
	return path
}

// gvisorRig is a rig whose pods run in gVisor, on the pod's network of the node's kernel.
func gvisorRig(t *testing.T) *rig {
	t.Helper()
	path := runsc(t)
	g := newRig(t)
	g.cfg.Runtimes = map[string]oci.Runtime{"gvisor": oci.Parse(path + " --network=host --platform=systrap")}
	g.reopen()
	g.importImage()
	return g
}

func (g *rig) runIn(handler string, config *criv1.PodSandboxConfig) string {
	g.t.Helper()
	id, err := g.r.RunPodSandbox(context.Background(), config, handler)
	if err != nil {
		g.t.Fatal(err)
	}
	return id
}

// A container in gVisor is created, started, watched, measured and ended as any other.
func TestGVisorLife(t *testing.T) {
	g := gvisorRig(t)
	pod := g.runIn("gvisor", g.podConfig())
	id := g.start(pod, shell("main",
		`trap "echo bye; exit 3" TERM; hostname; cat hello; echo $FROM_IMAGE; while :; do sleep 0.1; done`))
	eventually(t, "the log", func() bool { return g.log(id) == "pod-host\nhello\nyes\n" })
	if got := g.exec(id, "cat", "/proc/version"); !strings.Contains(strings.ToLower(got), "gvisor") {
		t.Errorf("the container runs on %q", got)
	}
	stats, err := g.r.ContainerStats(t.Context(), id)
	if err != nil || stats.GetCpu().GetUsageCoreNanoSeconds().GetValue() == 0 ||
		stats.GetMemory().GetWorkingSetBytes().GetValue() < 1<<20 {
		t.Errorf("statistics: %v %v", stats, err)
	}
	t.Logf("working set of a shell: %d MiB", stats.GetMemory().GetWorkingSetBytes().GetValue()>>20)
	if err := g.r.StopContainer(t.Context(), id, 10); err != nil {
		t.Fatal(err)
	}
	s := g.status(id)
	if s.State != criv1.ContainerState_CONTAINER_EXITED || s.ExitCode != 3 || s.Reason != "Error" {
		t.Errorf("status after stop: %v", s)
	}
	if !strings.HasSuffix(g.log(id), "bye\n") {
		t.Errorf("log: %q", g.log(id))
	}
	deaf := g.start(pod, shell("deaf", `trap "" TERM; echo deaf; while :; do sleep 0.1; done`))
	eventually(t, "the trap is set", func() bool { return g.log(deaf) == "deaf\n" })
	if err := g.r.StopContainer(t.Context(), deaf, 1); err != nil {
		t.Fatal(err)
	}
	if s := g.status(deaf); s.ExitCode != 137 {
		t.Errorf("status of one that was killed: %v", s)
	}
	if s := g.exited(g.start(pod, shell("seven", "exit 7"))); s.ExitCode != 7 {
		t.Errorf("status of one that ended: %v", s)
	}
}

func TestGVisorExec(t *testing.T) {
	g := gvisorRig(t)
	id := g.start(g.runIn("gvisor", g.podConfig()), shell("main", "while :; do sleep 0.1; done"))
	out, errOut, err := g.r.ExecSync(t.Context(), id, []string{"sh", "-c", "echo out; echo err >&2; exit 4"}, 0)
	var exit utilexec.CodeExitError
	if !errors.As(err, &exit) || exit.Code != 4 || string(out) != "out\n" || string(errOut) != "err\n" {
		t.Errorf("exec: %q %q %v", out, errOut, err)
	}
	if _, _, err := g.r.ExecSync(t.Context(), id, []string{"no-such-program"}, 0); err == nil {
		t.Error("a program that is not there ran")
	}
	_, _, err = g.r.ExecSync(t.Context(), id, []string{"sleep", "4242"}, time.Second)
	if err == nil {
		t.Error("a command that is cut off succeeds")
	}
	eventually(t, "the command that was cut off has ended", func() bool {
		return !strings.Contains(g.exec(id, "ps"), "sleep 4242")
	})
	var screen syncBuffer
	code, err := g.r.containers.Exec(t.Context(), id, []string{"sh", "-c", "stty size; read x; echo got $x"},
		container.IO{Stdin: strings.NewReader("word\n"), Stdout: &screen, TTY: true, Resize: sized(33, 111)})
	if err != nil || code != 0 || !strings.Contains(screen.String(), "33 111") ||
		!strings.Contains(screen.String(), "got word") {
		t.Errorf("exec with a terminal: %d %v %q", code, err, screen.String())
	}
	var copied bytes.Buffer
	in := bytes.Repeat([]byte("0123456789abcdef"), 1<<14)
	code, err = g.r.containers.Exec(t.Context(), id, []string{"cat"},
		container.IO{Stdin: bytes.NewReader(in), Stdout: &copied})
	if err != nil || code != 0 || !bytes.Equal(copied.Bytes(), in) {
		t.Errorf("exec with input: %d %v, %d bytes of %d", code, err, copied.Len(), len(in))
	}
}

func sized(height, width uint16) <-chan container.Size {
	ch := make(chan container.Size, 1)
	ch <- container.Size{Height: height, Width: width}
	return ch
}

// What the kernels of containers do not share is refused rather than left out.
func TestGVisorRefuses(t *testing.T) {
	g := gvisorRig(t)
	shared := g.podConfig()
	shared.Linux.SecurityContext.NamespaceOptions.Pid = criv1.NamespaceMode_POD
	if _, err := g.r.RunPodSandbox(t.Context(), shared, "gvisor"); err == nil ||
		!strings.Contains(err.Error(), "shareProcessNamespace") {
		t.Errorf("a shared process namespace: %v", err)
	}
	pod := g.runIn("gvisor", g.podConfig())
	looks := shell("looks", "sleep 9999")
	looks.Linux.SecurityContext.NamespaceOptions = &criv1.NamespaceOption{Pid: criv1.NamespaceMode_TARGET,
		TargetId: g.start(pod, shell("main", "sleep 9999"))}
	if _, err := g.r.CreateContainer(t.Context(), pod, looks, nil); err == nil ||
		!strings.Contains(err.Error(), "processes of another") {
		t.Errorf("the processes of another container: %v", err)
	}
}

// What it may take is limited by the pod's and the container's control groups.
func TestGVisorLimits(t *testing.T) {
	g := gvisorRig(t)
	hungry := shell("hungry", "x=0123456789abcdef; while :; do x=$x$x; done")
	hungry.Linux.Resources = &criv1.LinuxContainerResources{MemoryLimitInBytes: 128 << 20}
	s := g.exited(g.start(g.runIn("gvisor", g.podConfig()), hungry))
	if s.Reason != "OOMKilled" || s.ExitCode == 0 {
		t.Errorf("out of memory: code %d, reason %s", s.ExitCode, s.Reason)
	}
}

// A new agent takes over what runs in gVisor; containers end with their pod.
func TestGVisorTakenOver(t *testing.T) {
	g := gvisorRig(t)
	pod := g.runIn("gvisor", g.podConfig())
	id := g.start(pod, shell("main", "sleep 9999"))
	other := g.start(pod, shell("other", "sleep 1; exit 9"))
	pid := g.pid(id)
	g.reopen()
	if s := g.exited(other); s.ExitCode != 9 {
		t.Errorf("ended under the next agent: %v", s)
	}
	if g.pid(id) != pid || g.status(id).State != criv1.ContainerState_CONTAINER_RUNNING {
		t.Error("the running container is not the same")
	}
	if err := g.r.RemovePodSandbox(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	// What all of its sandboxes share stays, an empty network namespace.
	left, err := filepath.Glob(g.cfg.RunDir + "/runsc/*" + id + "*")
	if err != nil || len(left) > 0 {
		t.Errorf("the runtime's state that is left: %v %v", left, err)
	}
	if _, err := os.Stat("/proc/" + itoa(pid)); err == nil {
		t.Error("the sandbox lives on")
	}
}
