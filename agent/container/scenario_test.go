package container

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"golang.org/x/tools/txtar"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/beneath"
	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/oci"
	"github.com/shoal-project/shoal/tests/transcript"
)

// TestScenarios plays the files of testdata: lives of containers, with the programs
// of fakes_test.go as their monitors and runtimes. Each part of a file but "life" is
// what a container runs, a shell's script; GATE is a fifo that "end" writes to. In
// "life" a line "> command" is done, and the lines up to the next one are what came
// of it: errors, what was read, and how containers are now, where that is new.
//
//	create NAME [HANDLER|stdin|open|limited] prepares a container that runs the file's part of that name; stdin: it
//	                             takes one client's input, open: that of any; limited: it has a CPU quota
//	start NAME
//	await NAME TEXT              until its log has the text
//	say NAME TEXT                to its gate
//	end NAME CODE                it exits by its gate
//	gone NAME                    until it has exited
//	stop NAME GRACE
//	remove NAME
//	log NAME                     what its log has
//	rotate NAME                  its log is moved aside, and opened anew
//	attach NAME TEXT             says the text to it, and hears what it answers
//	call NAME TEXT               says the text to it, and has no more to say: that is the end
//	exec NAME WORD...
//	kill process|monitor NAME    by SIGKILL
//	half-start NAME              as start, but the agent is killed before it is recorded
//	three-quarter-start NAME     or right after, and the process was not let run
//	hang NAME                    somebody stops its monitor
//	agent stops|starts|restarts
//	agent is-impatient           restarts, and waits for no monitor that hangs
//	agent is-hasty               restarts, and waits a second for a container to be made
//	machine restarts             processes and what is below /run are gone
//	fault WORD                   what the programs do wrong from now on, "none"
//
// After a wanted change: go test ./agent/container -update, and read the diff.
func TestScenarios(t *testing.T) {
	transcript.Files(t, "testdata/*.txtar", func(t *testing.T, text string) string {
		a := txtar.Parse([]byte(text))
		r := newRig(t)
		for i := range a.Files {
			f := &a.Files[i]
			if f.Name == "life" {
				f.Data = []byte(r.play(string(f.Data)))
			} else {
				r.scripts[f.Name] = string(f.Data)
			}
		}
		return string(txtar.Format(a))
	})
}

// rig is an agent's containers on directories and control groups of their own.
type rig struct {
	t       *testing.T
	dir     string
	cfg     Config
	m       *Manager // nil while the agent is stopped
	group   string
	self    string // this program
	scripts map[string]string
	names   []string          // of the containers, as they were created
	shown   map[string]string // how each was shown last
	doing   string            // the command
	log     bytes.Buffer
}

// patience is how long something that happens at once may take on a busy machine.
const patience = 30 * time.Second

func newRig(t *testing.T) *rig {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root mounts the root file system of a container")
	}
	groups, err := cgroup.Open("")
	if err != nil {
		t.Skipf("a container's processes are in a control group: %v", err)
	}
	dir, err := os.MkdirTemp("", "ct")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{
		t:       t,
		dir:     dir,
		group:   "/shoal-" + filepath.Base(dir),
		scripts: map[string]string{},
		shown:   map[string]string{},
	}
	for _, d := range []string{"bin", "lower/etc", "state", "gates", "logs"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if r.self, err = os.Executable(); err != nil {
		t.Fatal(err)
	}
	runtimes := map[string]oci.Runtime{}
	for _, name := range []string{"conmon", "runc", "other"} {
		path := filepath.Join(dir, "bin", name)
		if err := os.Symlink(r.self, path); err != nil {
			t.Fatal(err)
		}
		runtimes[name] = oci.Runtime{Path: path, Root: filepath.Join(dir, "state", name)}
	}
	runtimes[""] = runtimes["runc"]
	r.cfg = Config{
		DataDir:  filepath.Join(dir, "data"),
		RunDir:   filepath.Join(dir, "run"),
		Conmon:   filepath.Join(dir, "bin", "conmon"),
		Runtimes: runtimes,
		Cgroups:  groups,
		OnChange: func(*Container) {},
		Log:      slog.New(slog.NewTextHandler(&r.log, nil)),
	}
	t.Cleanup(r.clean)
	r.open()
	return r
}

func (r *rig) open() {
	r.t.Helper()
	var err error
	if r.m, err = Open(r.cfg); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) close() {
	r.t.Helper()
	if err := r.m.Close(); err != nil {
		r.t.Error(err)
	}
	r.m = nil
}

// clean removes every container, and proves that nothing is left of them.
func (r *rig) clean() {
	r.fault("none")
	if r.m == nil {
		r.open()
	}
	for _, c := range r.m.List() {
		if err := r.m.Remove(context.Background(), c.ID); err != nil {
			r.t.Error(err)
		}
	}
	r.close()
	r.until("the end of the control group", func() bool {
		return r.cfg.Cgroups.Kill(r.group) == nil && r.cfg.Cgroups.Delete(r.group) == nil
	})
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), r.dir+"/") {
		r.t.Errorf("mounts are left, %v", err)
		return
	}
	for _, d := range []string{r.cfg.DataDir, r.cfg.RunDir, filepath.Join(r.cfg.RunDir, "exits")} {
		left, err := os.ReadDir(d)
		if err != nil {
			r.t.Error(err)
		}
		for _, e := range left {
			if e.Name() != "exits" {
				r.t.Errorf("%s/%s is left", d, e.Name())
			}
		}
	}
	if err := beneath.RemoveAll(r.dir); err != nil {
		r.t.Error(err)
	}
}

func (r *rig) play(script string) string {
	return transcript.Play(script, func(command string) string {
		r.doing = command
		text, err := r.do(strings.Fields(command))
		if err != nil {
			text += "error: " + err.Error() + "\n"
		}
		return strings.ReplaceAll(text, r.dir, "DIR") + r.changes()
	})
}

// do does one command; its text ends with a new line, or is empty.
func (r *rig) do(words []string) (string, error) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	name := words[1]
	switch command := words[0]; command {
	case "create":
		return "", r.create(ctx, name, words[2:])
	case "start":
		return "", r.m.Start(ctx, name)
	case "await":
		text := strings.Join(words[2:], " ")
		r.until(text+" in the log of "+name, func() bool { return strings.Contains(r.read(name), text) })
	case "say":
		r.tell(name, words[2])
	case "end":
		return "", r.end(ctx, name, words[2])
	case "gone":
		_, err := r.m.Wait(ctx, name)
		return "", err
	case "stop":
		grace, err := time.ParseDuration(words[2])
		if err != nil {
			r.t.Fatal(err)
		}
		return "", r.m.Stop(ctx, name, grace)
	case "remove":
		return "", r.m.Remove(ctx, name)
	case "log":
		return r.read(name), nil
	case "rotate":
		log := r.logPath(name)
		if err := os.Rename(log, log+".1"); err != nil {
			r.t.Fatal(err)
		}
		return "", r.m.ReopenLog(ctx, name)
	case "attach":
		return r.attach(ctx, name, strings.Join(words[2:], " ")+"\n")
	case "call":
		say := strings.NewReader(strings.Join(words[2:], " ") + "\n")
		return "", r.m.Attach(ctx, name, IO{Stdin: say, Stdout: io.Discard})
	case "exec":
		stdout, stderr, code, err := r.m.ExecSync(ctx, name, words[2:], patience, 1<<10)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("exits %d, says %q and %q\n", code, stdout, stderr), nil
	case "kill":
		return "", r.kill(ctx, name, words[2])
	case "hang":
		if err := unix.Kill(r.mustGet(name).Monitor, unix.SIGSTOP); err != nil {
			r.t.Fatal(err)
		}
	case "half-start", "three-quarter-start":
		return "", r.halfStart(name, command != "half-start")
	case "agent":
		r.agent(name)
	case "machine":
		r.reboot()
	case "fault":
		r.fault(name)
	default:
		r.t.Fatalf("command %q", words)
	}
	return "", nil
}

// changes are the containers that are not as they were shown last.
func (r *rig) changes() string {
	if r.m == nil {
		return ""
	}
	var out strings.Builder
	for _, name := range r.names {
		state := "gone"
		if c, err := r.m.Get(name); err == nil {
			state = string(c.State)
			if c.State == Exited {
				state += fmt.Sprintf(" %d %s", c.ExitCode, c.Reason)
			}
			if c.Message != "" {
				state += ": " + strings.ReplaceAll(c.Message, r.dir, "DIR")
			}
		}
		if r.shown[name] != state {
			r.shown[name] = state
			fmt.Fprintf(&out, "%s: %s\n", name, state)
		}
	}
	return out.String()
}

func (r *rig) until(what string, holds func() bool) {
	r.t.Helper()
	for late := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(late) {
			r.t.Fatalf("%q: not after %v: %s\n%s", r.doing, patience, what, r.log.String())
		}
	}
}

func (r *rig) gate(name string) string    { return filepath.Join(r.dir, "gates", name) }
func (r *rig) logPath(name string) string { return filepath.Join(r.dir, "logs", "pod", name, "0.log") }

// read is a log without its times.
func (r *rig) read(name string) string {
	text, err := os.ReadFile(r.logPath(name))
	if err != nil {
		return ""
	}
	var out strings.Builder
	for line := range strings.Lines(string(text)) {
		_, rest, _ := strings.Cut(line, " ")
		out.WriteString(rest)
	}
	return out.String()
}

func (r *rig) create(ctx context.Context, name string, how []string) error {
	if !slices.Contains(r.names, name) {
		r.names = append(r.names, name)
	}
	if err := unix.Mkfifo(r.gate(name), 0o600); err != nil && !errors.Is(err, unix.EEXIST) {
		r.t.Fatal(err)
	}
	_, err := r.m.Create(ctx, r.request(name, how))
	return err
}

// request is what a container of the script is made of.
func (r *rig) request(name string, how []string) Request {
	script := strings.ReplaceAll(r.scripts[name], "GATE", r.gate(name))
	req := Request{
		ID:        name,
		SandboxID: "s",
		Config: &criv1.ContainerConfig{
			Metadata: &criv1.ContainerMetadata{Name: name},
			Command:  []string{"sh", "-c", script},
			Linux:    &criv1.LinuxContainerConfig{Resources: &criv1.LinuxContainerResources{}},
		},
		Sandbox: &criv1.PodSandboxConfig{},
		Cgroup:  r.group + "/pod",
		LogPath: r.logPath(name),
		LogRoot: filepath.Join(r.dir, "logs"),
		Image:   Image{ID: "sha256:i", ChainID: "sha256:c", Lower: []string{filepath.Join(r.dir, "lower")}},
	}
	switch {
	case slices.Equal(how, []string{"stdin"}), slices.Equal(how, []string{"open"}):
		req.Config.Stdin, req.Config.StdinOnce = true, how[0] == "stdin"
	case slices.Equal(how, []string{"limited"}):
		req.Config.Linux.Resources.CpuQuota, req.Config.Linux.Resources.CpuPeriod = 5000, 100000
	case len(how) > 0:
		req.Handler = how[0]
	}
	return req
}

// tell writes a line to a container's gate once it reads there.
func (r *rig) tell(name, text string) {
	r.t.Helper()
	r.until("somebody at the gate of "+name, func() bool {
		f, err := os.OpenFile(r.gate(name), os.O_WRONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return false
		}
		defer f.Close()
		_, err = f.WriteString(text + "\n")
		return err == nil
	})
}

// end lets a container go by its gate. Without an agent the monitor's end is awaited,
// whose word the next agent reads.
func (r *rig) end(ctx context.Context, name, code string) error {
	r.tell(name, code)
	if r.m == nil {
		pid, err := readPID(filepath.Join(r.cfg.RunDir, name, "conmon.pid"))
		if err != nil {
			r.t.Fatal(err)
		}
		r.until("the end of the monitor of "+name, func() bool { return !exists(fmt.Sprint("/proc/", pid)) })
		return nil
	}
	_, err := r.m.Wait(ctx, name)
	return err
}

func (r *rig) attach(ctx context.Context, name, say string) (string, error) {
	in, answers, err := os.Pipe()
	if err != nil {
		r.t.Fatal(err)
	}
	defer in.Close()
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	heard := &answer{heard: make(chan struct{})}
	left := make(chan error, 1)
	go func() { left <- r.m.Attach(ctx, name, IO{Stdin: in, Stdout: heard}) }()
	if _, err := answers.WriteString(say); err != nil {
		r.t.Fatal(err)
	}
	select {
	case <-heard.heard:
		leave()
		err = <-left
	case err = <-left:
	}
	answers.Close()
	return heard.text, err
}

// answer is the first that is heard.
type answer struct {
	text  string
	heard chan struct{}
}

func (a *answer) Write(p []byte) (int, error) {
	if a.text == "" {
		a.text = string(p)
		close(a.heard)
	}
	return len(p), nil
}

func (r *rig) kill(ctx context.Context, what, name string) error {
	c, err := r.m.Get(name)
	if err != nil {
		return err
	}
	pid := c.PID
	if what == "monitor" {
		pid = c.Monitor
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.m.Wait(ctx, name); err != nil {
		return err
	}
	r.until("the end of all processes", func() bool {
		left, err := r.cfg.Cgroups.Pids(c.Cgroup)
		return err == nil && len(left) == 0
	})
	return nil
}

// halfStart does what Start does until the agent is killed.
func (r *rig) halfStart(name string, recorded bool) error {
	c := *r.mustGet(name)
	rt, err := r.m.runtime(c.Handler)
	if err != nil {
		return err
	}
	if c.PID, err = r.m.runMonitor(&c, rt); err != nil || !recorded {
		return err
	}
	c.PIDStart, _ = startTime(c.PID)
	if c.Monitor, err = readPID(filepath.Join(r.m.bundle(name), "conmon.pid")); err != nil {
		return err
	}
	c.MonitorAt, _ = startTime(c.Monitor)
	c.State, c.StartedAt = Running, time.Now()
	return r.m.records.Put(name, &record{&c})
}

func (r *rig) mustGet(name string) *Container {
	r.t.Helper()
	c, err := r.m.Get(name)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

func (r *rig) agent(what string) {
	if what != "starts" {
		r.close()
	}
	if what == "is-hasty" {
		r.cfg.startWait, r.cfg.hungWait = time.Second, 0
	}
	if what == "is-impatient" {
		r.cfg.hungWait = time.Millisecond
	}
	if what != "stops" {
		r.open()
	}
}

func (r *rig) reboot() {
	monitors := map[int]uint64{}
	for _, c := range r.m.List() {
		if c.State == Running {
			monitors[c.Monitor] = c.MonitorAt
		}
	}
	r.close()
	for pid, at := range monitors {
		_ = unix.Kill(pid, unix.SIGKILL)
		r.until("the end of monitor "+strconv.Itoa(pid), func() bool {
			same, err := sameProcess(pid, at)
			return !same && err == nil
		})
	}
	r.until("the end of all processes", func() bool { return r.cfg.Cgroups.Kill(r.group) == nil })
	bundles, err := os.ReadDir(r.cfg.RunDir)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, b := range bundles {
		for _, mount := range []string{"rootfs", "log"} {
			if err := unmount(filepath.Join(r.cfg.RunDir, b.Name(), mount)); err != nil {
				r.t.Error(err)
			}
		}
	}
	if err := beneath.RemoveAll(r.cfg.RunDir); err != nil {
		r.t.Error(err)
	}
	r.open()
}

// fault has programs go wrong, as fakes_test.go knows it; or there is no conmon.
func (r *rig) fault(word string) {
	if err := os.Remove(r.cfg.Conmon); err != nil && !errors.Is(err, os.ErrNotExist) {
		r.t.Fatal(err)
	}
	if word != "no-conmon" {
		if err := os.Symlink(r.self, r.cfg.Conmon); err != nil {
			r.t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(r.dir, "bin", "fault"), []byte(word), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// TestEndIsTold: whoever watches hears of each state once; when a container ended is
// what its monitor wrote down, also for an agent that was not there.
func TestEndIsTold(t *testing.T) {
	r := newRig(t)
	r.scripts["a"] = "read code < GATE; exit $code"
	told := make(chan State, 10)
	r.cfg.OnChange = func(c *Container) { told <- c.State }
	r.close()
	r.open()
	do := func(command string) {
		t.Helper()
		if _, err := r.do(strings.Fields(command)); err != nil {
			t.Fatal(err)
		}
	}
	do("create a")
	do("start a")
	do("agent stops")
	do("end a 9")
	ended := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	if err := os.Chtimes(filepath.Join(r.cfg.RunDir, "exits", "a"), ended, ended); err != nil {
		t.Fatal(err)
	}
	do("agent starts")
	do("gone a")
	if c := r.mustGet("a"); c.ExitCode != 9 || !c.FinishedAt.Equal(ended) || c.StartedAt.IsZero() {
		t.Errorf("code %d, started %v, ended %v", c.ExitCode, c.StartedAt, c.FinishedAt)
	}
	do("agent restarts")
	do("stop a 1s")
	close(told)
	var got []State
	for s := range told {
		got = append(got, s)
	}
	if !slices.Equal(got, []State{Created, Running, Exited}) {
		t.Errorf("told of %v", got)
	}
}

// TestChanges: limits of a container change before it is started and while it runs,
// and not after.
func TestChanges(t *testing.T) {
	r := newRig(t)
	r.scripts["a"] = "read code < GATE; exit $code"
	limit := func(bytes int64) error {
		return r.m.Update("a", &criv1.LinuxContainerResources{MemoryLimitInBytes: bytes})
	}
	do := func(command string) {
		t.Helper()
		if _, err := r.do(strings.Fields(command)); err != nil {
			t.Fatal(err)
		}
	}
	do("create a")
	if err := limit(32 << 20); err != nil {
		t.Error(err)
	}
	text, err := os.ReadFile(filepath.Join(r.cfg.RunDir, "a", "config.json"))
	if err != nil || !strings.Contains(string(text), `"limit":33554432`) {
		t.Errorf("the runtime is told %s, %v", text, err)
	}
	do("start a")
	if err := limit(64 << 20); err != nil {
		t.Error(err)
	}
	if st, err := r.m.Stats("a"); err != nil || st.MemoryLimit != 64<<20 {
		t.Errorf("the limit is %d, %v", st.MemoryLimit, err)
	}
	do("agent restarts")
	if got := r.mustGet("a").Config.GetLinux().GetResources().GetMemoryLimitInBytes(); got != 64<<20 {
		t.Errorf("a new agent knows of %d", got)
	}
	do("end a 0")
	if err := limit(16 << 20); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("after its end: %v", err)
	}
}

// TestNamesOfContainers: the beginning of an ID will do, if it is that of one only.
func TestNamesOfContainers(t *testing.T) {
	r := newRig(t)
	for _, name := range []string{"abc", "abd"} {
		if err := r.create(t.Context(), name, nil); err != nil {
			t.Fatal(err)
		}
	}
	if c, err := r.m.Get("abc"); err != nil || c.ID != "abc" {
		t.Errorf("%v, %v", c, err)
	}
	if _, err := r.m.Get("ab"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("two begin so: %v", err)
	}
	if _, err := r.m.Get(""); !errdefs.IsNotFound(err) {
		t.Errorf("no name: %v", err)
	}
	if list := r.m.List(); len(list) != 2 || list[0].ID != "abd" {
		t.Errorf("not the newest first: %v", list)
	}
	if !r.m.InUse("sha256:c") || r.m.InUse("sha256:d") {
		t.Error("the layers in use are others")
	}
	if u, err := r.m.Usage(t.Context(), "abc"); err != nil || u.Bytes < 0 || u.Dir == "" {
		t.Errorf("%+v, %v", u, err)
	}
}
