package main

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/shoal-project/shoal/agent/api"
	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/fence/keeper"
)

// An agent that comes back stops pods whose time is over before it looks at anything else,
// those of another boot excepted.
func TestStopOverdue(t *testing.T) {
	cfg := &config.Config{RunDir: t.TempDir()}
	log := slog.New(slog.DiscardHandler)
	if err := stopOverdue(cfg, "boot", log); err != nil {
		t.Errorf("nothing was left: %v", err)
	}
	dir := keeper.Directory{Path: filepath.Join(fenceDir(cfg), "boot")}
	if err := dir.Make(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	group := t.TempDir()
	procs := filepath.Join(group, "cgroup.procs")
	if err := os.WriteFile(procs, []byte(strconv.Itoa(cmd.Process.Pid)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := dir.Put("uid", keeper.Target{Groups: []string{group}}); err != nil {
		t.Fatal(err)
	}
	if err := dir.SetDeadline(1 << 60); err != nil {
		t.Fatal(err)
	}
	if err := stopOverdue(cfg, "boot", log); err != nil {
		t.Error(err)
	}
	select {
	case <-ended:
		t.Fatal("its time was not over")
	default:
	}
	if err := dir.SetDeadline(keeper.Clock()); err != nil {
		t.Fatal(err)
	}
	if err := stopOverdue(cfg, "boot", log); err != nil {
		t.Error(err)
	}
	<-ended
}

// The list of mounts has no symbolic links: what is below one would never be written.
func TestVolumesToWriteAreNamedAsTheKernelNamesThem(t *testing.T) {
	dir, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	if err := os.Mkdir(filepath.Join(dir, "pods"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	cfg := &config.Config{RunDir: t.TempDir(), RootDir: link, CgroupDriver: "cgroupfs"}
	g, err := newGuard(cfg, &api.Server{Client: fake.NewClientset()}, "boot", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	target := g.Target(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid"}})
	if want := filepath.Join(dir, "pods", "uid", "volumes"); target.Volumes != want {
		t.Errorf("%s, want %s", target.Volumes, want)
	}
}
