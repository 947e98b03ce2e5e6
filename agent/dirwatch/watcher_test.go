package dirwatch

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// kernel gives no watch while it is full.
type kernel struct {
	mu   sync.Mutex
	full bool
}

func (k *kernel) set(full bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.full = full
}

func (k *kernel) open() (*fsnotify.Watcher, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.full {
		return nil, fmt.Errorf("inotify: %w", unix.EMFILE)
	}
	return fsnotify.NewWatcher()
}

func start(t *testing.T, k *kernel) (w *Watcher, dir string, said *strings.Builder) {
	t.Helper()
	said = &strings.Builder{}
	w, err := begin(slog.New(slog.NewTextHandler(said, nil)), k.open, time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	if err := w.Add(dir); err != nil {
		t.Fatal(err)
	}
	return w, dir, said
}

func hears(t *testing.T, w *Watcher, dir, name string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for {
		select {
		case e := <-w.Events:
			if filepath.Base(e.Name) == name {
				return
			}
		case err := <-w.Errors:
			if !errors.Is(err, ErrLook) {
				t.Fatal(err)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("nothing tells of %s", name)
		}
	}
}

func TestKernelTells(t *testing.T) {
	w, dir, said := start(t, &kernel{})
	hears(t, w, dir, "a")
	select {
	case err := <-w.Errors:
		t.Errorf("looked at though the kernel tells: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	if err := w.Add(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory that is not there: %v", err)
	}
	if err := w.Close(); err != nil || said.Len() > 0 {
		t.Error(err, said)
	}
}

// TestNoneLeft: what the kernel does not tell is looked for, until it does.
func TestNoneLeft(t *testing.T) {
	k := &kernel{full: true}
	w, dir, said := start(t, k)
	for range 3 {
		if err := <-w.Errors; !errors.Is(err, ErrLook) {
			t.Fatal(err)
		}
	}
	k.set(false)
	for deadline := time.After(20 * time.Second); ; { // at most one that was on its way
		select {
		case <-w.Errors:
			continue
		case <-deadline:
			t.Fatal("still looked at")
		case <-time.After(50 * time.Millisecond):
		}
		break
	}
	hears(t, w, dir, "a")
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if strings.Count(said.String(), "level=WARN") != 1 || strings.Count(said.String(), "level=INFO") != 1 {
		t.Errorf("said %s", said)
	}
}

// TestOtherErrors: only what others may give back is waited for.
func TestOtherErrors(t *testing.T) {
	_, err := begin(slog.New(slog.DiscardHandler),
		func() (*fsnotify.Watcher, error) { return nil, unix.ENOSYS }, time.Millisecond)
	if !errors.Is(err, unix.ENOSYS) {
		t.Errorf("a kernel without watches: %v", err)
	}
}
