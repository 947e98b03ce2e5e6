package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/agent/logs"
	"github.com/shoal-project/shoal/agent/quota"
	"github.com/shoal-project/shoal/csi/btrfs"
	"github.com/shoal-project/shoal/csi/btrfs/btrfstest"
)

const mib = 1 << 20

// flood writes more to its log than it may, and goes on.
const flood = `busybox yes a-line-of-a-log-that-says-nothing-and-says-it-often | head -c 12000000
touch /tmp/flooded
while [ ! -e /data/go ]; do echo alive; sleep 0.05; done
exit 7`

// TestContainerLimit has a container fill its limit: its writes fail, its monitor drops what
// its log has no room for, and neither waits. What is written after the log was rotated is
// in the new one.
func TestContainerLimit(t *testing.T) {
	at := btrfstest.Disk(t, 512*mib)
	if !btrfs.KernelHasSimple() {
		t.Skip("the kernel has no simple quotas (Linux 6.7)")
	}
	f, err := os.Open(at)
	if err != nil {
		t.Fatal(err)
	}
	err = btrfs.Enable(f)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	disk, why, err := quota.Open(at)
	if err != nil || disk == nil {
		t.Fatal(why, err)
	}
	g := newRig(t)
	first := g.cfg.DataDir
	g.cfg.DataDir, g.cfg.Quotas = filepath.Join(at, "data"), disk
	g.reopen()
	if err := os.RemoveAll(first); err != nil {
		t.Fatal(err)
	}
	g.importImage()
	pod := g.podConfig()
	pod.LogDirectory = filepath.Join(at, "logs", "pod")
	config := shell("c", flood)
	// It must not begin its log anew by itself: that a full file system refuses it would be
	// its end.
	config.Annotations = map[string]string{quota.AnnotationLimit: fmt.Sprint(8 * mib),
		logs.AnnotationMax: fmt.Sprint(mib)}
	id := g.start(g.run(pod), config)
	do := func(command ...string) (stderr string, err error) {
		_, said, err := g.r.ExecSync(t.Context(), id, command, time.Minute)
		return string(said), err
	}
	eventually(t, "it goes on when its log is full", func() bool {
		_, err := do("cat", "/tmp/flooded")
		return err == nil
	})
	if said, err := do("dd", "if=/dev/zero", "of=/big", "bs=1M", "count=40"); err == nil ||
		!strings.Contains(said, "Disk quota exceeded") {
		t.Errorf("it writes what it wants: %s %v", said, err)
	}
	log := g.status(id).LogPath
	if st, err := os.Stat(log); err != nil || st.Size() < 6*mib || st.Size() > quota.Hard(8*mib) {
		t.Errorf("the log: %v %v", st, err)
	}
	stats, err := g.r.ContainerStats(t.Context(), id)
	if used := stats.GetWritableLayer(); err != nil || used.GetInodesUsed() != nil ||
		used.GetUsedBytes().GetValue() < 8*mib || used.GetUsedBytes().GetValue() > uint64(quota.Hard(8*mib)) {
		t.Errorf("%v %v", used, err)
	}
	if err := os.Remove(log); err != nil {
		t.Fatal(err)
	}
	if err := g.r.ReopenContainerLog(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it writes to its new log", func() bool {
		text, err := os.ReadFile(log)
		return err == nil && strings.Contains(string(text), "stdout F alive\n")
	})
	eventually(t, "there is room again", func() bool {
		_, err := do("busybox", "rm", "-f", "/big")
		_, again := do("touch", "/data/go")
		return err == nil && again == nil
	})
	if s := g.exited(id); s.ExitCode != 7 {
		t.Errorf("it ended with %d: %s", s.ExitCode, s.Message)
	}
}

// TestLogOnFullDisk has a monitor begin its log anew, again and again, on a file system that
// takes no other file: it and its container live on, and what is written last is there.
func TestLogOnFullDisk(t *testing.T) {
	at := filepath.Join(t.TempDir(), "logs")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", at, "tmpfs", 0, "size=16m,nr_inodes=24"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(at, 0) })
	g := newRig(t)
	g.importImage()
	pod := g.podConfig()
	pod.LogDirectory = filepath.Join(at, "pod")
	config := shell("c", `for i in 1 2 3 4 5 6 7 8 9 10 11 12; do
while [ ! -e /data/$i ]; do sleep 0.05; done
busybox yes a-line-of-a-log | head -c 20000; echo part $i; done
echo end; exit 7`)
	config.Annotations = map[string]string{logs.AnnotationMax: fmt.Sprint(100_000)}
	file := filepath.Join(pod.LogDirectory, config.LogPath)
	rotator := &logs.Rotator{Dir: at, MaxBytes: 100_000, MaxFiles: 3, Bounded: true, Log: g.cfg.Log,
		Logs:   func() []logs.Written { return []logs.Written{{Path: file, Bounded: true}} },
		Reopen: func(context.Context, string) error { return errors.New("its container has not started") }}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- rotator.Run(ctx) }()
	defer func() { stop(); <-ended }()
	id := g.start(g.run(pod), config)
	rotator.Watch(filepath.Dir(file))
	full := false
	for i := 0; !full; i++ {
		full = os.WriteFile(filepath.Join(at, fmt.Sprint(i)), nil, 0o600) != nil
	}
	// A part is 76 kB with what the monitor adds: it begins the log anew once, or not at all.
	for i := 1; i <= 12; i++ {
		eventually(t, "the next file is there", func() bool {
			_, err := os.Stat(file + ".tmp")
			return err == nil
		})
		touch := []string{"touch", fmt.Sprint("/data/", i)}
		if _, _, err := g.r.ExecSync(t.Context(), id, touch, time.Minute); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the part is written", func() bool {
			text, err := os.ReadFile(file)
			return err == nil && strings.Contains(string(text), fmt.Sprintf("stdout F part %d\n", i))
		})
	}
	if s := g.exited(id); s.ExitCode != 7 {
		t.Errorf("it ended with %d: %s", s.ExitCode, s.Message)
	}
	if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), "stdout F end\n") {
		t.Errorf("the log of %d bytes lacks its end, %v", len(text), err)
	}
}
