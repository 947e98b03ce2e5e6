package logs

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTakenLogsAreRestored: whatever somebody does to a log's name, what its monitor writes is
// read by it again, and nothing is lost.
func TestTakenLogsAreRestored(t *testing.T) {
	elsewhere := filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(elsewhere, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, take := range map[string]func(path string) error{
		"removed":   os.Remove,
		"renamed":   func(path string) error { return os.Rename(path, path+".1") },
		"link":      func(path string) error { return errors.Join(os.Remove(path), os.Symlink(elsewhere, path)) },
		"directory": func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
		"fifo":      func(path string) error { return errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)) },
	} {
		for _, held := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				dir := t.TempDir()
				path := filepath.Join(dir, "ns_p_u", "c", "0.log")
				err := errors.Join(MakeDir(dir, filepath.Dir(path)), os.WriteFile(path, []byte("a\n"), 0o600))
				if err != nil {
					t.Fatal(err)
				}
				monitor, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer monitor.Close()
				reopened := false
				r := &Rotator{Dir: dir, MaxBytes: 100, MaxFiles: 3, Log: slog.New(slog.DiscardHandler),
					Reopen: func(context.Context, string) error {
						reopened = true
						return os.WriteFile(path, []byte("a\nb\n"), 0o600)
					}}
				if held {
					r.settle(filepath.Dir(path), "0.log")
				}
				if err := take(path); err != nil {
					t.Fatal(err)
				}
				if isFile(path) {
					t.Error("it seems to be there")
				}
				r.rotate(t.Context(), Written{ID: "c", Path: path, Bounded: true})
				if _, err := monitor.WriteString("b\n"); err != nil {
					t.Fatal(err)
				}
				if text, err := os.ReadFile(path); err != nil || string(text) != "a\nb\n" || !isFile(path) {
					t.Errorf("the log has %q, %v", text, err)
				}
				if reopened == held {
					t.Errorf("its monitor was asked: %v", reopened)
				}
				if text, _ := os.ReadFile(elsewhere); string(text) != "secret" {
					t.Errorf("a file elsewhere has %q", text)
				}
			})
		}
	}
}

// TestLogOfNoDirectory: a monitor whose directory of logs was removed is asked to begin another.
func TestLogOfNoDirectory(t *testing.T) {
	dir := t.TempDir()
	asked := 0
	r := &Rotator{Dir: dir, MaxBytes: 100, MaxFiles: 3, Log: slog.New(slog.DiscardHandler),
		Reopen: func(context.Context, string) error {
			asked++
			return nil
		}}
	r.rotate(t.Context(), Written{ID: "c", Path: filepath.Join(dir, "ns_p_u", "c", "0.log"), Bounded: true})
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
}

// TestWhatIsFullStays: a directory with something in it is nobody's to remove.
func TestWhatIsFullStays(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "ns_p_u", "c", "0.log")
	if err := errors.Join(MakeDir(dir, filepath.Dir(path)), os.MkdirAll(filepath.Join(path, "x"), 0o700)); err != nil {
		t.Fatal(err)
	}
	r := &Rotator{Dir: dir, MaxBytes: 100, MaxFiles: 3, Log: slog.New(slog.DiscardHandler),
		Reopen: func(context.Context, string) error {
			t.Error("a monitor was asked for a log, and would have ended")
			return nil
		}}
	r.rotate(t.Context(), Written{ID: "c", Path: path, Bounded: true})
	if _, err := os.Stat(filepath.Join(path, "x")); err != nil {
		t.Error(err)
	}
}
