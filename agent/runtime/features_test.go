package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

const forever = "trap 'exit 0' TERM; while :; do sleep 0.1; done"

func TestSecurityContext(t *testing.T) {
	g := newRig(t)
	g.importImage()
	pod := g.run(g.podConfig())
	caps := func(id string) string {
		for line := range strings.Lines(g.exec(id, "cat", "/proc/1/status")) {
			if v, ok := strings.CutPrefix(line, "CapEff:"); ok {
				return strings.TrimSpace(v)
			}
		}
		return ""
	}
	user := shell("user", forever)
	sc := user.Linux.SecurityContext
	sc.RunAsUser, sc.SupplementalGroups, sc.NoNewPrivs = &criv1.Int64Value{Value: 101}, []int64{2000}, true
	sc.ReadonlyRootfs = true
	sc.Seccomp = &criv1.SecurityProfile{ProfileType: criv1.SecurityProfile_RuntimeDefault}
	sc.Capabilities = &criv1.Capability{DropCapabilities: []string{"ALL"}, AddCapabilities: []string{"NET_BIND_SERVICE"}}
	id := g.start(pod, user)
	if got := g.exec(id, "id"); got != "uid=101(web) gid=102(web) groups=102(web),103(extra),2000\n" {
		t.Errorf("id: %q", got)
	}
	if st := g.exec(id, "grep", "-E", "NoNewPrivs|Seccomp:|CapBnd",
		"/proc/1/status"); !strings.Contains(st, "NoNewPrivs:\t1") ||
		!strings.Contains(st, "Seccomp:\t2") || !strings.Contains(st, "CapBnd:\t0000000000000400") {
		t.Errorf("process status:\n%s", st)
	}
	if _, _, err := g.r.ExecSync(context.Background(), id, []string{"touch", "/x"}, 0); err == nil {
		t.Error("the root file system is writable")
	}
	strict := shell("strict", forever)
	sc = strict.Linux.SecurityContext
	sc.RunAsUser, sc.RunAsGroup = &criv1.Int64Value{Value: 101}, &criv1.Int64Value{Value: 500}
	sc.SupplementalGroupsPolicy = criv1.SupplementalGroupsPolicy_Strict
	id = g.start(pod, strict)
	if got := g.exec(id, "id", "-G"); got != "500\n" {
		t.Errorf("groups under the Strict policy: %q", got)
	}
	privileged := shell("privileged", forever)
	privileged.Linux.SecurityContext.Privileged = true
	id = g.start(pod, privileged)
	if caps(id) == "0000000000000000" || !strings.Contains(g.exec(id, "ls", "/dev"), "kmsg") {
		t.Error("the privileged container is not privileged")
	}
	g.exec(id, "mount", "-t", "tmpfs", "x", "/tmp")
}

func TestMounts(t *testing.T) {
	g := newRig(t)
	g.importImage()
	host := filepath.Join(g.dir, "host")
	if err := os.MkdirAll(host, 0o755); err != nil {
		t.Fatal(err)
	}
	pod := g.run(g.podConfig())
	c := shell("c", forever)
	c.Mounts = []*criv1.Mount{
		{HostPath: host, ContainerPath: "/rw"}, {HostPath: host, ContainerPath: "/ro", Readonly: true},
		{HostPath: host, ContainerPath: "/rro", Readonly: true, RecursiveReadOnly: true},
		{HostPath: filepath.Join(g.dir, "made"), ContainerPath: "/made"},
		{Image: &criv1.ImageSpec{Image: testImage}, ImageSubPath: "data", ContainerPath: "/image", Readonly: true},
	}
	id := g.start(pod, c)
	g.exec(id, "sh", "-c", "echo hi > /rw/file")
	if b, err := os.ReadFile(filepath.Join(host, "file")); err != nil || string(b) != "hi\n" {
		t.Errorf("file on the host: %q, %v", b, err)
	}
	for _, dir := range []string{"/ro", "/rro", "/image"} {
		if _, _, err := g.r.ExecSync(context.Background(), id, []string{"touch", dir + "/x"}, 0); err == nil {
			t.Errorf("%s is writable", dir)
		}
	}
	if got := g.exec(id, "cat", "/image/hello"); got != "hello\n" {
		t.Errorf("image volume: %q", got)
	}
	if got := g.exec(id, "mount"); strings.Contains(got, g.dir+"/run") && !strings.Contains(got, "overlay") {
		t.Errorf("mounts: %s", got)
	}
}

func TestNamespaces(t *testing.T) {
	g := newRig(t)
	g.importImage()
	config := g.podConfig()
	config.Linux.SecurityContext.NamespaceOptions.Pid = criv1.NamespaceMode_POD
	config.Linux.Sysctls = map[string]string{"kernel.shm_rmid_forced": "1", "net.ipv4.ip_forward": "1"}
	pod := g.run(config)
	shared := func(name string) string {
		c := shell(name, "I="+name+"; "+forever)
		c.Linux.SecurityContext.NamespaceOptions.Pid = criv1.NamespaceMode_POD
		return g.start(pod, c)
	}
	a, b := shared("a"), shared("b")
	if ps := g.exec(a, "ps"); !strings.Contains(ps, "I=a;") || !strings.Contains(ps, "I=b;") {
		t.Errorf("a does not see both main processes of the pod:\n%s", ps)
	}
	if got := g.exec(a, "cat", "/proc/sys/kernel/shm_rmid_forced", "/proc/sys/net/ipv4/ip_forward"); got != "1\n1\n" {
		t.Errorf("sysctls: %q", got)
	}
	g.exec(a, "touch", "/dev/shm/together")
	g.exec(b, "ls", "/dev/shm/together")
	g.reopen()
	shared("after-restart")
	host := g.podConfig()
	host.Metadata.Uid = "uid-2"
	host.Linux.SecurityContext.NamespaceOptions = &criv1.NamespaceOption{Network: criv1.NamespaceMode_NODE,
		Pid: criv1.NamespaceMode_NODE, Ipc: criv1.NamespaceMode_NODE}
	hostPod := g.run(host)
	c := shell("host", forever)
	c.Linux.SecurityContext.NamespaceOptions = host.Linux.SecurityContext.NamespaceOptions
	id := g.start(hostPod, c)
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(g.exec(id, "hostname")); got != name {
		t.Errorf("host name %q, want the node's, %q", got, name)
	}
	config.Linux.Sysctls = map[string]string{"vm.overcommit_memory": "1"}
	if _, err := g.r.RunPodSandbox(context.Background(), config, ""); err == nil {
		t.Error("a sysctl of the node was set")
	}
}

func TestSessions(t *testing.T) {
	g := newRig(t)
	g.importImage()
	pod := g.run(g.podConfig())
	config := shell("c", `while read l; do echo "got $l"; done; echo over; sleep 1000`)
	config.Stdin = true
	id := g.start(pod, config)
	ctx := context.Background()
	t.Run("exec", func(t *testing.T) {
		var out, errOut bytes.Buffer
		err := g.r.ExecIn(ctx, id, []string{"sh", "-c", "cat; echo err >&2; exit 4"},
			Streams{Stdin: strings.NewReader("input"), Stdout: &out, Stderr: &errOut})
		var exit utilexec.CodeExitError
		if !errors.As(err, &exit) || exit.Code != 4 || out.String() != "input" || errOut.String() != "err\n" {
			t.Errorf("out %q, err %q, %v", out.String(), errOut.String(), err)
		}
	})
	t.Run("terminal", func(t *testing.T) {
		var out bytes.Buffer
		resize := make(chan remotecommand.TerminalSize, 1)
		resize <- remotecommand.TerminalSize{Width: 91, Height: 33}
		err := g.r.ExecIn(ctx, id, []string{"sh", "-c", "sleep 0.2; stty size; exit 5"},
			Streams{Stdout: &out, TTY: true, Resize: resize})
		var exit utilexec.CodeExitError
		if !errors.As(err, &exit) || exit.Code != 5 || out.String() != "33 91\r\n" {
			t.Errorf("out %q, %v", out.String(), err)
		}
	})
	t.Run("missing program and timeout", func(t *testing.T) {
		_, _, err := g.r.ExecSync(ctx, id, []string{"nothing-like-it"}, 0)
		if err == nil || !strings.Contains(err.Error(), "not found in $PATH") {
			t.Errorf("missing program: %v", err)
		}
		at := time.Now()
		_, _, err = g.r.ExecSync(ctx, id, []string{"sleep", "77"}, 300*time.Millisecond)
		if err == nil || !strings.Contains(err.Error(), "DeadlineExceeded") || time.Since(at) > 10*time.Second {
			t.Errorf("timeout: %v after %v", err, time.Since(at))
		}
		eventually(t, "the end of the late command", func() bool { return !strings.Contains(g.exec(id, "ps"), "sleep 77") })
	})
	t.Run("endless output", func(t *testing.T) {
		say := []string{"sh", "-c", "head -c 20000000 /dev/zero; head -c 20000000 /dev/zero >&2"}
		for keep, run := range map[int]func(context.Context, string, []string, time.Duration) ([]byte, []byte, error){
			maxOutput: g.r.ExecSync, maxBrief: Brief{g.r}.ExecSync,
		} {
			out, errOut, err := run(ctx, id, say, 0)
			if err != nil || len(out) != keep || len(errOut) != keep {
				t.Errorf("%d and %d bytes are kept, want %d; %v", len(out), len(errOut), keep, err)
			}
		}
	})
	t.Run("attach", func(t *testing.T) {
		in, feed := io.Pipe()
		defer feed.Close()
		out := &syncBuffer{}
		attached, leave := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- g.r.AttachTo(attached, id, Streams{Stdin: in, Stdout: out}) }()
		fmt.Fprintln(feed, "hello")
		eventually(t, "the answer", func() bool { return out.String() == "got hello\n" })
		leave()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Run("port forward", func(t *testing.T) {
		g.start(pod, shell("server", "echo from the pod | nc -l -p 8080"))
		here, there := net.Pipe()
		answer := make(chan string, 1)
		go func() {
			b, _ := io.ReadAll(here)
			answer <- string(b)
		}()
		eventually(t, "a connection", func() bool { return g.r.ForwardPort(ctx, pod, 8080, there) == nil })
		if got := <-answer; got != "from the pod\n" {
			t.Errorf("answer %q", got)
		}
	})
	t.Run("log rotation", func(t *testing.T) {
		file := g.status(id).LogPath
		if err := os.Rename(file, file+".1"); err != nil {
			t.Fatal(err)
		}
		if err := g.r.ReopenContainerLog(ctx, id); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(file); err != nil {
			t.Error(err)
		}
	})
	t.Run("limits in place", func(t *testing.T) {
		err := g.r.UpdateContainerResources(ctx, id,
			&criv1.ContainerResources{Linux: &criv1.LinuxContainerResources{MemoryLimitInBytes: 48 << 20, CpuShares: 77}})
		if err != nil {
			t.Fatal(err)
		}
		if s, err := g.r.containers.Stats(id); err != nil || s.MemoryLimit != 48<<20 {
			t.Errorf("stats: %+v, %v", s, err)
		}
		if got := g.status(id).Resources.Linux; got.CpuShares != 77 {
			t.Errorf("status: %v", got)
		}
	})
}

// The output of a command that ends at once must not be lost on a terminal.
func TestShortTerminalSessions(t *testing.T) {
	g := newRig(t)
	g.importImage()
	id := g.start(g.run(g.podConfig()), shell("c", forever))
	for i := range 20 {
		in, idle := io.Pipe()
		var out syncBuffer
		sizes := make(chan remotecommand.TerminalSize, 1)
		sizes <- remotecommand.TerminalSize{Width: 90, Height: 30}
		err := g.r.ExecIn(context.Background(), id, []string{"/bin/sh", "-c", "printf hello; exit 3"},
			Streams{Stdin: in, Stdout: &out, TTY: true, Resize: sizes})
		idle.Close()
		var exit utilexec.CodeExitError
		if !errors.As(err, &exit) || exit.Code != 3 || out.String() != "hello" {
			t.Fatalf("session %d: %v, output %q", i, err, out.String())
		}
	}
}

func TestSocket(t *testing.T) {
	g := newRig(t)
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- g.r.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	}()
	conn, err := grpc.NewClient("unix://"+filepath.Join(g.cfg.RunDir, CRISocket),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	g.importImage()
	images := criv1.NewImageServiceClient(conn)
	list, err := images.ListImages(ctx, &criv1.ListImagesRequest{}, grpc.WaitForReady(true))
	if err != nil || len(list.Images) != 1 || list.Images[0].RepoTags[0] != testImage {
		t.Fatalf("images: %v, %v", list, err)
	}
	rt := criv1.NewRuntimeServiceClient(conn)
	events, err := rt.GetContainerEvents(ctx, &criv1.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := events.Header(); err != nil {
		t.Fatal(err)
	}
	pod, err := rt.RunPodSandbox(ctx, &criv1.RunPodSandboxRequest{Config: g.podConfig()})
	if err != nil {
		t.Fatal(err)
	}
	if ev, err := events.Recv(); err != nil || ev.ContainerId != pod.PodSandboxId ||
		ev.PodSandboxStatus.GetId() != pod.PodSandboxId {
		t.Errorf("event: %v, %v", ev, err)
	}
	_, err = rt.ContainerStatus(ctx, &criv1.ContainerStatusRequest{ContainerId: "nothing"})
	if err == nil || !strings.Contains(err.Error(), "code = NotFound") {
		t.Errorf("status of nothing: %v", err)
	}
	st, err := rt.Status(ctx, &criv1.StatusRequest{Verbose: true})
	if err != nil || len(st.Status.Conditions) != 2 || !st.Features.SupplementalGroupsPolicy {
		t.Errorf("status: %v, %v", st, err)
	}
}

// A container's own terminal, under each installed runtime.
func TestTerminalContainerAndHandlers(t *testing.T) {
	g := newRig(t)
	g.importImage()
	for handler := range g.r.cfg.Runtimes {
		t.Run("handler "+handler, func(t *testing.T) {
			ctx := context.Background()
			config := g.podConfig()
			config.Metadata.Uid = "uid-" + handler
			pod, err := g.r.RunPodSandbox(ctx, config, handler)
			if err != nil {
				t.Fatal(err)
			}
			c := shell("tty"+handler, `read x; stty size; echo "$x $TERM"; exit 6`)
			c.Tty, c.Stdin, c.StdinOnce = true, true, true
			id := g.start(pod, c)
			in, feed := io.Pipe()
			defer feed.Close()
			out := &syncBuffer{}
			resize := make(chan remotecommand.TerminalSize)
			ended := make(chan error, 1)
			go func() {
				ended <- g.r.AttachTo(ctx, id, Streams{Stdin: in, Stdout: out, TTY: true, Resize: resize})
			}()
			resize <- remotecommand.TerminalSize{Width: 70, Height: 20}
			eventually(t, "the new size",
				func() bool { return strings.Contains(g.exec(id, "sh", "-c", "stty size < /dev/console"), "20 70") })
			fmt.Fprintln(feed, "typed")
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if s := g.exited(id); s.ExitCode != 6 || !strings.Contains(out.String(), "20 70\r\ntyped xterm\r\n") {
				t.Errorf("code %d, out %q", s.ExitCode, out.String())
			}
			if err := g.r.RemovePodSandbox(ctx, pod); err != nil {
				t.Error(err)
			}
		})
	}
	if _, err := g.r.RunPodSandbox(context.Background(), g.podConfig(), "none"); err == nil ||
		!strings.Contains(err.Error(), `no runtime for "none" is configured`) {
		t.Errorf("an unknown handler: %v", err)
	}
}
