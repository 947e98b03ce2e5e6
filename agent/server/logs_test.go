package server

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/agent/record"
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
			return errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(dir+"/0.log", nil, 0o600), os.Truncate(dir+"/0.log", 1<<40))
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			logs := t.TempDir()
			dir := filepath.Join(logs, "pod", "c")
			if err := errors.Join(os.MkdirAll(filepath.Dir(dir), 0o755), c.make(dir)); err != nil {
				t.Fatal(err)
			}
			for _, follow := range []bool{false, true} {
				var text strings.Builder
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				err := readLog(ctx, logFile{dir: logs, path: dir + "/0.log"}, logOptions{tail: -1, follow: follow, stdout: true},
					&flushing{w: &text, limit: -1}, func() bool { return true })
				if ctx.Err() != nil {
					t.Error("it hangs")
				}
				cancel()
				if (err == nil) != c.ok || c.ok != (text.String() == "text\n") {
					t.Errorf("follow %v: %q, %v", follow, text.String(), err)
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
		r.rotate(t.Context(), &record.Observation{LogPath: filepath.Join(logs, path)})
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
