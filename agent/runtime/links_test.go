package runtime

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestLogsAreWrittenThroughNoLinks: a pod that has the directory of logs in a
// volume leads what root writes there nowhere else.
func TestLogsAreWrittenThroughNoLinks(t *testing.T) {
	g := newRig(t)
	g.importImage()
	config := g.podConfig()
	pod := g.run(config)
	ctx := context.Background()
	outside := t.TempDir()
	victim := filepath.Join(outside, "victim")
	if err := os.WriteFile(victim, []byte("root's"), 0o600); err != nil {
		t.Fatal(err)
	}
	untouched := func(when string) {
		t.Helper()
		entries, err := os.ReadDir(outside)
		data, readErr := os.ReadFile(victim)
		if err != nil || readErr != nil || len(entries) != 1 || string(data) != "root's" {
			t.Errorf("%s: %v, %v; %q, %v", when, entries, err, data, readErr)
		}
	}
	create := func(name string) string {
		t.Helper()
		c := shell(name, "while :; do echo said; sleep 0.05; done")
		c.LogPath = name + "/0.log"
		id, err := g.r.CreateContainer(ctx, pod, c, config)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}

	id := create("file")
	dir := filepath.Join(config.LogDirectory, "file")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.Symlink(victim, filepath.Join(dir, "0.log"))); err != nil {
		t.Fatal(err)
	}
	if err := g.r.StartContainer(ctx, id); err == nil {
		t.Error("a container was started whose log is a link")
	}
	untouched("the log is a link")

	id = create("rotated")
	log := filepath.Join(config.LogDirectory, "rotated", "0.log")
	if err := g.r.StartContainer(ctx, id); err != nil {
		t.Fatal(err)
	}
	said := func() bool { b, _ := os.ReadFile(log); return strings.Contains(string(b), "said") }
	eventually(t, "the log", said)
	if err := os.Rename(log, log+".old"); err != nil {
		t.Fatal(err)
	}
	if err := g.r.ReopenContainerLog(ctx, id); err != nil {
		t.Error(err)
	}
	eventually(t, "the log after its rotation", said)
	if err := unix.Unlink(log); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{log, log + ".tmp"} {
		if err := os.Symlink(victim, name); err != nil {
			t.Fatal(err)
		}
	}
	// It may well fail, and conmon end over it.
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = g.r.ReopenContainerLog(short, id)
	untouched("the log is rotated to a link")

	if err := os.Symlink(outside, filepath.Join(config.LogDirectory, "directory")); err != nil {
		t.Fatal(err)
	}
	c := shell("directory", forever)
	c.LogPath = "directory/0.log"
	if _, err := g.r.CreateContainer(ctx, pod, c, config); err == nil {
		t.Error("a container was created whose directory of logs is a link")
	}
	untouched("the directory is a link")
}

// TestLogDirRemoved: a container whose directory of logs somebody removed has another when its
// log is opened anew, and its monitor does not end there.
func TestLogDirRemoved(t *testing.T) {
	g := newRig(t)
	g.importImage()
	config := g.podConfig()
	pod := g.run(config)
	ctx := context.Background()
	c := shell("c", "while :; do echo said; sleep 0.05; done")
	c.LogPath = "c/0.log"
	id, err := g.r.CreateContainer(ctx, pod, c, config)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.r.StartContainer(ctx, id); err != nil {
		t.Fatal(err)
	}
	said := func() bool {
		b, _ := os.ReadFile(filepath.Join(config.LogDirectory, "c/0.log"))
		return strings.Contains(string(b), "said")
	}
	eventually(t, "the log", said)
	for range 2 {
		if err := os.RemoveAll(config.LogDirectory); err != nil {
			t.Fatal(err)
		}
		if err := g.r.ReopenContainerLog(ctx, id); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the log in another directory", said)
	}
	s, err := g.r.ContainerStatus(ctx, id, false)
	if err != nil || s.GetStatus().GetState() != criv1.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the container is %v, %v", s.GetStatus().GetState(), err)
	}
	if err := g.r.RemoveContainer(ctx, id); err != nil {
		t.Error(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), id) {
		t.Errorf("mounts of the container are left, %v", err)
	}
}

// TestTargetsNumberIsAnothers: a container that shall see the processes of
// another one is not put among the node's when the other has ended and its
// process number is a process of the node's.
func TestTargetsNumberIsAnothers(t *testing.T) {
	g := newRig(t)
	g.importImage()
	pod := g.run(g.podConfig())
	ctx := context.Background()
	target := g.start(pod, shell("target", "I=target; "+forever))
	debugger := func(name string) *criv1.ContainerConfig {
		c := shell(name, forever)
		c.Linux.SecurityContext.NamespaceOptions = &criv1.NamespaceOption{Pid: criv1.NamespaceMode_TARGET,
			TargetId: target}
		return c
	}
	if ps := g.exec(g.start(pod, debugger("in-time")), "ps"); !strings.Contains(ps, "I=target") {
		t.Errorf("the target's processes are not seen:\n%s", ps)
	}
	late, err := g.r.CreateContainer(ctx, pod, debugger("late"), nil)
	if err != nil {
		t.Fatal(err)
	}
	pid := g.pid(target)
	if err := g.r.StopContainer(ctx, target, 0); err != nil {
		t.Fatal(err)
	}
	g.exited(target)
	takeNumber(t, pid)
	if err := g.r.StartContainer(ctx, late); err == nil {
		t.Errorf("it was started among:\n%s", g.exec(late, "ps"))
	}
}

// takeNumber starts a process of the node with this number.
func takeNumber(t *testing.T, pid int) {
	t.Helper()
	for range 500 { // others take numbers too
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(pid-1)), 0); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		end := func() { _, _ = cmd.Process.Kill(), cmd.Wait() }
		if cmd.Process.Pid == pid {
			t.Cleanup(end)
			return
		}
		end()
	}
	t.Fatalf("no process got the number %d", pid)
}
