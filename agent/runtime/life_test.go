package runtime

import (
	"bytes"
	"context"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/checkpoint"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func goArch() string { return goruntime.GOARCH }

func TestLifeOfAPod(t *testing.T) {
	g := newRig(t)
	g.importImage()
	pod := g.run(g.podConfig())
	id := g.start(pod, shell("main", `trap "echo bye; exit 3" TERM; hostname; cat hello; echo $FROM_IMAGE; while :; do sleep 0.1; done`))
	s := g.status(id)
	if s.State != criv1.ContainerState_CONTAINER_RUNNING || s.StartedAt == 0 || s.Image.Image != testImage {
		t.Fatalf("status: %v", s)
	}
	eventually(t, "the log", func() bool { return g.log(id) == "pod-host\nhello\nyes\n" })
	if got := g.exec(id, "cat", "/etc/resolv.conf"); got != "search default.svc\nnameserver 10.96.0.10\noptions ndots:5\n" {
		t.Errorf("resolv.conf: %q", got)
	}
	if err := g.r.StopContainer(context.Background(), id, 10); err != nil {
		t.Fatal(err)
	}
	s = g.status(id)
	if s.State != criv1.ContainerState_CONTAINER_EXITED || s.ExitCode != 3 || s.Reason != "Error" ||
		s.FinishedAt <= s.StartedAt {
		t.Errorf("status after stop: %v", s)
	}
	if !strings.HasSuffix(g.log(id), "bye\n") {
		t.Errorf("log: %q", g.log(id))
	}
	if err := g.r.StopPodSandbox(context.Background(), pod); err != nil {
		t.Fatal(err)
	}
	if p, _ := g.r.PodSandboxStatus(context.Background(), pod,
		false); p.Status.State != criv1.PodSandboxState_SANDBOX_NOTREADY {
		t.Errorf("sandbox: %v", p)
	}
	if err := g.r.RemovePodSandbox(context.Background(), pod); err != nil {
		t.Fatal(err)
	}
	if len(g.net.up) != 0 {
		t.Error("the network was not torn down")
	}
}

func TestExitCodesAndReasons(t *testing.T) {
	g := newRig(t)
	g.importImage()
	pod := g.run(g.podConfig())
	for script, want := range map[string]struct {
		code   int32
		reason string
	}{
		"exit 0":        {0, "Completed"},
		"exit 7":        {7, "Error"},
		"kill -KILL $$": {137, "Error"},
	} {
		c := shell("c", script)
		if strings.Contains(script, "KILL") { // the first process of a PID namespace cannot kill itself
			c.Linux.SecurityContext.NamespaceOptions.Pid = criv1.NamespaceMode_NODE
		}
		s := g.exited(g.start(pod, c))
		if s.ExitCode != want.code || s.Reason != want.reason {
			t.Errorf("%s: code %d, reason %s", script, s.ExitCode, s.Reason)
		}
	}
	hungry := shell("hungry", "dd if=/dev/zero of=/dev/shm/x bs=1M count=60; exit 5")
	if g.cfg.Driver == cgroup.Systemd { // then the kernel has to end the first process for it to be told
		hungry = shell("hungry", "exec dd if=/dev/zero of=/dev/shm/x bs=1M count=60")
	}
	hungry.Linux.Resources = &criv1.LinuxContainerResources{MemoryLimitInBytes: 16 << 20}
	if s := g.exited(g.start(pod, hungry)); s.Reason != "OOMKilled" {
		t.Errorf("out of memory: code %d, reason %s", s.ExitCode, s.Reason)
	}
	missing := shell("missing", "")
	missing.Command = []string{"/no/such/program"}
	id, err := g.r.CreateContainer(context.Background(), pod, missing, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = g.r.StartContainer(context.Background(), id)
	if err == nil || !strings.Contains(strings.ToLower(err.Error()), "no such file or directory") {
		t.Errorf("start of a missing program: %v", err)
	}
	if s := g.status(id); s.ExitCode != 128 || s.Reason != "StartError" ||
		s.State != criv1.ContainerState_CONTAINER_EXITED {
		t.Errorf("status of a missing program: %v", s)
	}
}

func TestKilledAgentFindsItsContainers(t *testing.T) {
	g := newRig(t)
	g.importImage()
	pod := g.run(g.podConfig())
	stays := g.start(pod, shell("stays", "i=0; while :; do echo $i; i=$((i+1)); sleep 0.05; done"))
	ends := g.start(pod, shell("ends", "sleep 0.5; exit 42"))
	pid := g.pid(stays)
	if err := g.r.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	time.Sleep(time.Second) // nobody watches while one container ends
	g.open()
	s := g.exited(ends)
	if s.ExitCode != 42 || s.Reason != "Error" {
		t.Errorf("ended meanwhile: %v", s)
	}
	if at := time.Unix(0, s.FinishedAt); at.Before(before.Add(-100*time.Millisecond)) ||
		at.After(before.Add(900*time.Millisecond)) {
		t.Errorf("its end is told as %v, the agent was away from %v on", at, before)
	}
	if g.pid(stays) != pid || g.status(stays).State != criv1.ContainerState_CONTAINER_RUNNING {
		t.Error("the running container is not the same")
	}
	last := ""
	for i, line := range strings.Split(strings.TrimSpace(g.log(stays)), "\n") {
		if line != itoa(i) {
			t.Fatalf("gap in the log: %q after %q", line, last)
		}
		last = line
	}
	if p, _ := g.r.PodSandboxStatus(context.Background(), pod,
		false); p.Status.State != criv1.PodSandboxState_SANDBOX_READY || p.Status.Network.Ip != "10.1.2.3" {
		t.Errorf("sandbox: %v", p)
	}
	stopped := make(chan Event, 10)
	defer g.r.Subscribe(func(e Event) { stopped <- e })()
	if err := g.r.StopContainer(context.Background(), stays, 0); err != nil {
		t.Fatal(err)
	}
	e := <-stopped
	if e.ContainerID == ends { // a status tells of an end before its event does
		e = <-stopped
	}
	if e.Type != criv1.ContainerEventType_CONTAINER_STOPPED_EVENT || e.ContainerID != stays || e.PodUID != "uid-1" {
		t.Errorf("event: %+v", e)
	}
}

// What runs and no record tells of is ended: else its pod would run twice.
func TestRecordsLost(t *testing.T) {
	g := newRig(t)
	g.importImage()
	pid := g.pid(g.start(g.run(g.podConfig()), shell("main", "sleep 9999")))
	if err := g.r.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"sandboxes", "containers"} {
		records, err := filepath.Glob(filepath.Join(g.cfg.DataDir, kind, "*.json"))
		if err != nil || len(records) == 0 {
			t.Fatalf("records of %s: %v", kind, err)
		}
		for _, path := range records {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
	}
	g.open()
	eventually(t, "what ran has ended", func() bool { return syscall.Kill(pid, 0) != nil })
	left, err := filepath.Glob(filepath.Join(g.cfg.RunDir, "*", "*", "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left: %q %v", left, err)
	}
	g.reopen()
	g.start(g.run(g.podConfig()), shell("main", "sleep 9999"))
}

// A record that is damaged while the agent is away is set aside, and what it told of
// is ended, by what the kernel shows: nothing of it runs on or is left, others are
// not touched, and the next start finds nothing to do.
func TestRecordDamaged(t *testing.T) {
	for name, tc := range map[string]struct {
		kind   string
		damage func([]byte) []byte
		sealed bool
	}{
		"container, cut short":       {"containers", func(b []byte) []byte { return b[:len(b)/2] }, false},
		"container, another's bytes": {"containers", func([]byte) []byte { return []byte("\x7fELF, or so") }, false},
		"container, empty":           {"containers", func([]byte) []byte { return nil }, true},
		"container, cut in its head": {"containers", func(b []byte) []byte { return b[:20] }, true},
		"sandbox, cut short":         {"sandboxes", func(b []byte) []byte { return b[:len(b)/2] }, true},
		"sandbox, cut in its head":   {"sandboxes", func(b []byte) []byte { return b[:20] }, true},
		"sandbox, a bit is another":  {"sandboxes", func(b []byte) []byte { b[len(b)/2] ^= 1; return b }, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t)
			var log bytes.Buffer
			g.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
			if tc.sealed {
				var err error
				if g.cfg.Seal, err = checkpoint.NewKeys(bytes.Repeat([]byte{7}, 32)); err != nil {
					t.Fatal(err)
				}
				g.reopen()
				log.Reset()
			}
			g.importImage()
			stays := g.start(g.run(g.podConfig()), shell("main", "sleep 9999"))
			staying := g.pid(stays)

			config := g.podConfig()
			config.Metadata.Name, config.Metadata.Uid = "lost", "uid-lost"
			config.Linux.SecurityContext = &criv1.LinuxSandboxSecurityContext{
				NamespaceOptions: &criv1.NamespaceOption{Pid: criv1.NamespaceMode_POD}}
			pod := g.run(config)
			lost := g.start(pod, shell("main", "sleep 9999"))
			pid := g.pid(lost)
			id := lost
			if tc.kind == "sandboxes" {
				id = pod
			}
			if err := g.r.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(g.cfg.DataDir, tc.kind, id+".json")
			data, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, tc.damage(data), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			g.open()
			eventually(t, "what ran has ended", func() bool { return syscall.Kill(pid, 0) != nil })
			if groups := g.r.cgroups.Named(g.cfg.CgroupRoot, lost); len(groups) > 0 {
				t.Errorf("groups are left: %q", groups)
			}
			g.leavesNothing(lost)
			if tc.kind == "sandboxes" {
				g.leavesNothing(pod)
			}
			if n := strings.Count(log.String(), "level=ERROR"); n != 1 {
				t.Errorf("told %d times:\n%s", n, log.String())
			}
			if g.pid(stays) != staying || syscall.Kill(staying, 0) != nil {
				t.Error("the other pod's container is not the same")
			}
			log.Reset()
			g.reopen()
			if log.Len() > 0 {
				t.Errorf("the next start says:\n%s", log.String())
			}
			if tc.kind == "sandboxes" {
				pod = g.run(config) // as its owner does
			}
			g.start(pod, shell("main", "sleep 9999"))
		})
	}
}

// leavesNothing looks for mounts and files of a container or a sandbox.
func (g *rig) leavesNothing(id string) {
	g.t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		g.t.Fatal(err)
	}
	if strings.Contains(string(mounts), id) {
		g.t.Errorf("mounts of %s are left", id)
	}
	err = filepath.WalkDir(g.dir, func(path string, _ fs.DirEntry, err error) error {
		if strings.Contains(filepath.Base(path), id) && !strings.HasSuffix(path, ".damaged") {
			g.t.Errorf("%s is left", path)
		}
		return err
	})
	if err != nil {
		g.t.Fatal(err)
	}
}
