package logs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// begins writes a log anew as conmon does: another file takes the name.
func begins(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path+".tmp", []byte(text), 0o600), os.Rename(path+".tmp", path)); err != nil {
		t.Fatal(err)
	}
}

// texts are what is in the files of a log, the oldest first.
func texts(t *testing.T, path string) []string {
	t.Helper()
	names, err := filepath.Glob(path + "*")
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	names = append(slices.DeleteFunc(names, func(n string) bool { return n == path || n == nextName(path) }), path)
	var out []string
	for _, n := range names {
		data, err := os.ReadFile(n)
		if errors.Is(err, os.ErrNotExist) { // it was the oldest one too many, or is another now
			return nil
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(data))
	}
	return out
}

// TestBoundedLogsAreKept: what a monitor has begun anew stays under another name, as many
// as there may be, whether the agent runs meanwhile or not.
func TestBoundedLogsAreKept(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "ns_p_u", "c", "0.log")
	if err := MakeDir(dir, filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	rotator := func() (*Rotator, func()) {
		r := &Rotator{Dir: dir, MaxBytes: 100, MaxFiles: 3, Bounded: true, Log: slog.New(slog.DiscardHandler),
			Logs:   func() []Written { return []Written{{ID: "c", Path: path, Bounded: true}} },
			Reopen: func(context.Context, string) error { return errors.New("it has not begun") }}
		r.Watch(filepath.Dir(path))
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		return r, func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
	wait := func(want ...string) {
		t.Helper()
		var got []string
		for range 500 {
			if got = texts(t, path); slices.Equal(got, want) {
				held, _ := os.ReadFile(filepath.Join(filepath.Dir(path), ".0.held"))
				if string(held) == want[len(want)-1] {
					return
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Fatalf("logs are %q, want %q", got, want)
	}
	_, stop := rotator()
	begins(t, path, "a")
	wait("a")
	begins(t, path, "b")
	wait("a", "b")
	begins(t, path, "c")
	wait("a", "b", "c")
	begins(t, path, "d")
	wait("b", "c", "d")
	stop()
	begins(t, path, "e") // and nobody hears of it
	if got := texts(t, path); !slices.Equal(got, []string{"b", "c", "e"}) {
		t.Errorf("without an agent: %q", got)
	}
	_, stop = rotator()
	wait("c", "d", "e")
	stop()
	if err := Remove(File{Dir: dir, Path: path}); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestCanHold(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	for range 2 {
		if err := CanHold(dir); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
	if err := CanHold("/proc/self"); err == nil { // which takes no files at all
		t.Error("files are made in proc")
	}
}

// TestHeldFollowsNothing: what a pod puts in the place of a log's second name leads nowhere,
// and what is not a log's name is left alone.
func TestHeldFollowsNothing(t *testing.T) {
	out := filepath.Join(t.TempDir(), "secret")
	dir := t.TempDir()
	in := filepath.Join(dir, "ns_p_u", "c")
	steps := []error{
		os.WriteFile(out, []byte("secret"), 0o600), MakeDir(dir, in),
		os.WriteFile(filepath.Join(in, "0.log"), []byte("now"), 0o600),
		os.Symlink(out, filepath.Join(in, ".0.held")),
		os.Mkdir(filepath.Join(in, ".1.held"), 0o755),
		os.WriteFile(filepath.Join(in, "1.log"), []byte("now"), 0o600),
		os.Symlink(out, filepath.Join(in, "2.log")),
		os.WriteFile(filepath.Join(in, "00.log"), nil, 0o600), os.WriteFile(filepath.Join(in, "x.log"), nil, 0o600),
		os.Symlink(in, filepath.Join(dir, "link")),
	}
	if err := errors.Join(steps...); err != nil {
		t.Fatal(err)
	}
	r := &Rotator{Dir: dir, MaxFiles: 3, Log: slog.New(slog.DiscardHandler)}
	r.settleAll(in)
	r.settleAll(filepath.Join(dir, "link"))
	r.settleAll(filepath.Dir(out))
	if held, err := os.ReadFile(filepath.Join(in, ".0.held")); err != nil || string(held) != "now" {
		t.Errorf("held: %q, %v", held, err)
	}
	names, err := os.ReadDir(in)
	var got []string
	for _, n := range names {
		got = append(got, n.Name())
	}
	want := ".0.held .1.held 0.log 0.log.tmp 00.log 1.log 1.log.tmp 2.log x.log"
	if err != nil || strings.Join(got, " ") != want {
		t.Errorf("%v, %v", got, err)
	}
	if data, _ := os.ReadFile(out); string(data) != "secret" {
		t.Error("a file elsewhere was changed")
	}
}

// TestFollowCrossesManyRotations: who reads more slowly than a log is begun anew misses
// nothing that is there still, and gets it in order.
func TestFollowCrossesManyRotations(t *testing.T) {
	line := func(n int) string { return fmt.Sprintf("2026-01-01T00:00:%02dZ stdout F %d\n", n, n) }
	file := write(t, line(0))
	r := &Rotator{Dir: file.Dir, MaxFiles: 9, Log: slog.New(slog.DiscardHandler)}
	settle := func() { r.settle(filepath.Dir(file.Path), filepath.Base(file.Path)) }
	settle()
	at := time.Now().Add(-time.Hour)
	var out strings.Builder
	n := 0
	ended := func() bool { // asked whenever all is read
		if n == 6 {
			return true
		}
		for range 3 {
			if err := os.Chtimes(file.Path, at, at); err != nil {
				t.Error(err)
			}
			n++
			at = at.Add(time.Second)
			begins(t, file.Path, line(n))
			if n != 5 { // the last but one has no name of its own yet
				settle()
			}
		}
		if err := os.Chtimes(file.Path, at, at); err != nil {
			t.Error(err)
		}
		return false
	}
	err := Read(t.Context(), file, Options{Tail: -1, Follow: true, Stdout: true}, &Output{W: &out, Limit: -1}, ended)
	if want := "0\n1\n2\n3\n4\n6\n"; err != nil || out.String() != want {
		t.Errorf("%q, %v, want %q", out.String(), err, want)
	}
}
