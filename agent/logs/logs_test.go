package logs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

const logLine = "2026-01-01T00:00:00Z stdout F text\n"

// TestLogsFollowNothing: what a pod with the directory of logs in a volume puts
// there is neither shown, waited for nor kept in memory.
func TestLogsFollowNothing(t *testing.T) {
	out := t.TempDir()
	if err := os.WriteFile(filepath.Join(out, "0.log"), []byte(logLine), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		make func(dir string) error // of the container's logs
		ok   bool
	}{
		{"plain", func(dir string) error {
			return errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(dir+"/0.log", []byte(logLine), 0o600))
		}, true},
		{"link", func(dir string) error {
			return errors.Join(os.MkdirAll(dir, 0o755), os.Symlink(out+"/0.log", dir+"/0.log"))
		}, false},
		{"directory", func(dir string) error { return os.Symlink(out, dir) }, false},
		{"fifo", func(dir string) error {
			return errors.Join(os.MkdirAll(dir, 0o755), unix.Mkfifo(dir+"/0.log", 0o666))
		}, false},
		{"endless", func(dir string) error {
			return errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(dir+"/0.log", nil, 0o600),
				os.Truncate(dir+"/0.log", 1<<40))
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			logs := t.TempDir()
			dir := filepath.Join(logs, "pod", "c")
			if err := errors.Join(os.MkdirAll(filepath.Dir(dir), 0o755), c.make(dir)); err != nil {
				t.Fatal(err)
			}
			for _, o := range []Options{{Tail: -1, Stdout: true}, {Tail: -1, Follow: true, Stdout: true},
				{Tail: 5, Stdout: true}} {
				var text strings.Builder
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				err := Read(ctx, File{Dir: logs, Path: dir + "/0.log"}, o,
					&Output{W: &text, Limit: -1}, func() bool { return true })
				if ctx.Err() != nil {
					t.Error("it hangs")
				}
				cancel()
				if (err == nil) != c.ok || c.ok != (text.String() == "text\n") {
					t.Errorf("%+v: %q, %v", o, text.String(), err)
				}
			}
		})
	}
}

// TestRotationFollowsNothing: only logs are renamed, only old ones removed.
func TestRotationFollowsNothing(t *testing.T) {
	out, logs := t.TempDir(), t.TempDir()
	steps := []error{
		os.WriteFile(filepath.Join(out, "0.log"), []byte(logLine), 0o600),
		os.WriteFile(filepath.Join(out, "0.log.20200101-000000"), []byte(logLine), 0o600),
		os.MkdirAll(filepath.Join(logs, "pod/c"), 0o755),
		os.Symlink(out, filepath.Join(logs, "pod/away")),
		os.WriteFile(filepath.Join(logs, "pod/c/0.log"), []byte(logLine), 0o600),
		os.WriteFile(filepath.Join(logs, "pod/c/0.log.20200101-000000"), []byte(logLine), 0o600),
		os.WriteFile(filepath.Join(logs, "pod/c/0.log.20200102-000000"), []byte(logLine), 0o600),
		os.WriteFile(filepath.Join(logs, "pod/c/10.log"), []byte(logLine), 0o600),
	}
	if err := errors.Join(steps...); err != nil {
		t.Fatal(err)
	}
	reopened := 0
	r := &Rotator{Dir: logs, MaxBytes: 1, MaxFiles: 3, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Reopen: func(context.Context, string) error { reopened++; return nil }}
	for _, path := range []string{"pod/away/0.log", "pod/c/0.log", "../" + filepath.Base(out) + "/0.log"} {
		r.rotate(t.Context(), Written{Path: filepath.Join(logs, path)})
	}
	if reopened != 1 {
		t.Errorf("%d logs were rotated", reopened)
	}
	if entries, err := os.ReadDir(out); err != nil || len(entries) != 2 {
		t.Errorf("files elsewhere were changed: %v, %v", entries, err)
	}
	left, err := filepath.Glob(filepath.Join(logs, "pod/c/*"))
	if err != nil || len(left) != 3 || filepath.Base(left[0]) != "0.log.20200102-000000" {
		t.Errorf("logs that are left: %v, %v", left, err)
	}
}

// TestEachLogIsRotatedOnItsOwn: a monitor that does not answer holds up no
// other's log, and is not asked again meanwhile.
func TestEachLogIsRotatedOnItsOwn(t *testing.T) {
	logs := t.TempDir()
	var written []Written
	for _, id := range []string{"stuck", "fine"} {
		dir := filepath.Join(logs, "pod", id)
		if err := errors.Join(os.MkdirAll(dir, 0o755),
			os.WriteFile(filepath.Join(dir, "0.log"), []byte(logLine), 0o600)); err != nil {
			t.Fatal(err)
		}
		written = append(written, Written{ID: id, Path: filepath.Join(dir, "0.log")})
	}
	synctest.Test(t, func(t *testing.T) {
		var stuck, fine atomic.Int32
		r := &Rotator{Logs: func() []Written { return written }, Dir: logs, MaxBytes: 1, MaxFiles: 3,
			Log: slog.New(slog.DiscardHandler), Reopen: func(ctx context.Context, id string) error {
				if id == "stuck" {
					stuck.Add(1)
					<-ctx.Done()
					return ctx.Err()
				}
				fine.Add(1)
				return os.WriteFile(filepath.Join(logs, "pod", id, "0.log"), []byte(logLine), 0o600)
			}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		time.Sleep(3*rotateEvery + time.Second)
		synctest.Wait()
		if stuck.Load() != 1 || fine.Load() != 4 {
			t.Errorf("asked %d and %d times", stuck.Load(), fine.Load())
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestFollowWithoutWatcher: who gets no watcher of the kernel looks for itself.
func TestFollowWithoutWatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &follower{}
		defer f.close()
		before := time.Now()
		if err := f.next(t.Context()); err != nil || time.Since(before) != endCheck {
			t.Errorf("after %v, %v", time.Since(before), err)
		}
	})
}

// FuzzLog: whatever a runtime, or a pod with the directory, has written into a
// log, reading it ends, does not panic and gives no more than there is.
func FuzzLog(f *testing.F) {
	f.Add([]byte("2026-01-01T00:00:00.000000000Z stdout F hello\n"), true, int64(-1), int64(-1))
	f.Add([]byte("2026-01-01T00:00:00.000000000Z stderr P part"), false, int64(1), int64(3))
	f.Add([]byte("\n \n  \n   \n"), true, int64(2), int64(0))
	f.Add([]byte("x y z"), true, int64(0), int64(5))
	dir := f.TempDir()
	file := File{Dir: dir, Path: filepath.Join(dir, "0.log")}
	f.Fuzz(func(t *testing.T, data []byte, timestamps bool, tail, limit int64) {
		if err := os.WriteFile(file.Path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		o := Options{Stdout: true, Stderr: true, Timestamps: timestamps, Since: time.Unix(0, 0), Tail: max(tail, -1)}
		limit = max(limit, -1)
		err := Read(t.Context(), file, o, &Output{W: &out, Limit: limit}, func() bool { return true })
		if err != nil && !errors.Is(err, ErrFull) && !errors.Is(err, errLongLine) {
			t.Fatal(err)
		}
		if out.Len() > len(data) || limit >= 0 && int64(out.Len()) > limit {
			t.Errorf("%d bytes of %d, limit %d", out.Len(), len(data), limit)
		}
	})
}
