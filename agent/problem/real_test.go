package problem

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/host"
)

// A file system of the test's own has an error: this kernel says so, makes it read-only,
// and the watcher sees it, and its end.
func TestThisMachinesFilesystem(t *testing.T) {
	dir, device := ext4(t)
	changed := make(chan struct{}, 1)
	w := &Watcher{Machine: ThisOne(), Paths: []string{dir}, Log: slog.New(slog.DiscardHandler),
		Event: func(string, string) {},
		Set:   func(time.Duration) {},
		Changed: func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	await := func(want corev1.ConditionStatus) {
		t.Helper()
		for limit := time.After(time.Minute); ; {
			for _, c := range w.Conditions() {
				if c.Type == ReadonlyFilesystem && c.Status == want {
					return
				}
			}
			select {
			case <-changed:
			case <-limit:
				t.Fatalf("not %s: %+v", want, w.Conditions())
			}
		}
	}
	await(no)
	trigger := filepath.Join("/sys/fs/ext4", device, "trigger_fs_error")
	if err := os.WriteFile(trigger, []byte("test of shoal"), 0); err != nil {
		t.Skip(err)
	}
	await(yes)
	if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	await(no)
}

// ext4 mounts a file system that is made read-only when it has an error.
func ext4(t *testing.T) (dir, device string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root mounts")
	}
	// Without the kernel's log the watcher does not hear of it.
	if err := host.FollowKernelLog(canceled(t), func(host.KernelLine) {}, nil); err != nil {
		t.Skip(err)
	}
	image := filepath.Join(t.TempDir(), "image")
	dir = t.TempDir()
	for _, c := range [][]string{
		{"truncate", "--size=4M", image},
		{"mkfs.ext4", "-q", image},
		{"mount", "-o", "loop,errors=remount-ro", image, dir},
	} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			t.Skipf("%s: %v: %s", c[0], err, out)
		}
	}
	t.Cleanup(func() { _ = exec.Command("umount", "--lazy", dir).Run() })
	m, err := host.MountsOf([]string{dir})
	if err != nil || !strings.HasPrefix(m[dir].Device, "loop") {
		t.Fatalf("%+v, %v", m, err)
	}
	return dir, m[dir].Device
}

func canceled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
