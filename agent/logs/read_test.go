package logs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// text is a log with lines of both streams, a line in two parts, and one that is
// nobody's.
const text = `2026-01-01T00:00:01.5Z stdout F one
2026-01-01T00:00:02Z stderr F two
2026-01-01T00:00:03Z stdout P thr
2026-01-01T00:00:03Z stdout F ee
nobody's
2026-01-01T00:00:04.5+00:00 stdout F four
`

// write makes a log in a directory of all logs.
func write(t *testing.T, text string) File {
	t.Helper()
	dir := t.TempDir()
	f := File{Dir: dir, Path: filepath.Join(PodDir(dir, "ns", "pod", "uid"), Name("c", 0))}
	if err := errors.Join(MakeDir(dir, filepath.Dir(f.Path)), os.WriteFile(f.Path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestRead(t *testing.T) {
	file := write(t, text)
	all := Options{Tail: -1, Stdout: true, Stderr: true}
	with := func(change func(*Options)) Options { o := all; change(&o); return o }
	for _, tt := range []struct {
		name  string
		o     Options
		limit int64
		want  string
	}{
		{"all", all, -1, "one\ntwo\nthree\nfour\n"},
		{"stdout", with(func(o *Options) { o.Stderr = false }), -1, "one\nthree\nfour\n"},
		{"stderr", with(func(o *Options) { o.Stdout = false }), -1, "two\n"},
		{"tail", with(func(o *Options) { o.Tail = 1 }), -1, "four\n"},
		{"tail of more than there is", with(func(o *Options) { o.Tail = 100 }), -1, "one\ntwo\nthree\nfour\n"},
		{"tail of none", with(func(o *Options) { o.Tail = 0 }), -1, ""},
		{"since", with(func(o *Options) { o.Since = time.Date(2026, 1, 1, 0, 0, 3, 0, time.UTC) }), -1, "three\nfour\n"},
		{"timestamps", with(func(o *Options) { o.Timestamps, o.Tail = true, 1 }), -1, "2026-01-01T00:00:04.500000000Z four\n"},
		{"timestamps of parts", with(func(o *Options) { o.Timestamps, o.Tail = true, 4 }), -1,
			"2026-01-01T00:00:03.000000000Z three\n2026-01-01T00:00:04.500000000Z four\n"},
		{"limit", all, 6, "one\ntw"},
	} {
		var out strings.Builder
		err := Read(t.Context(), file, tt.o, &Output{W: &out, Limit: tt.limit}, func() bool { return true })
		if out.String() != tt.want || err != nil && !errors.Is(err, ErrFull) {
			t.Errorf("%s: %q, %v", tt.name, out.String(), err)
		}
	}
}

// TestFollowCrossesRotation: who follows a log gets what was written before the
// rotation and after it, once each, and the end when the container ended.
func TestFollowCrossesRotation(t *testing.T) {
	file := write(t, "2026-01-01T00:00:01Z stdout F one\n")
	var out strings.Builder
	steps := []func() error{
		func() error { return os.Rename(file.Path, rotatedName(file.Path, time.Unix(0, 0))) },
		func() error { return os.WriteFile(file.Path, []byte("2026-01-01T00:00:02Z stdout F two\n"), 0o600) },
	}
	ended := func() bool { // asked whenever all is read
		if len(steps) == 0 {
			return true
		}
		if err := steps[0](); err != nil {
			t.Error(err)
		}
		steps = steps[1:]
		return false
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := Read(ctx, file, Options{Tail: -1, Stdout: true, Follow: true}, &Output{W: &out, Limit: -1}, ended)
	if out.String() != "one\ntwo\n" || err != nil || ctx.Err() != nil {
		t.Errorf("%q, %v, %v", out.String(), err, ctx.Err())
	}
}

// TestFollowMissesNothing: a container may write, and its log be rotated, between any
// two looks of who follows it.
func TestFollowMissesNothing(t *testing.T) {
	for _, tt := range []struct {
		name string
		at   int // the look before which it happens
		ends bool
	}{
		{"while it runs", 1, false},
		{"when it ends", 1, true},
		{"after it ended", 2, true},
	} {
		file := write(t, "2026-01-01T00:00:01Z stdout F one\n")
		var out strings.Builder
		looks := 0
		turn := func() { // between the end of what is there and the next question
			if looks++; looks != tt.at {
				return
			}
			old, err := os.OpenFile(file.Path, os.O_APPEND|os.O_WRONLY, 0)
			if err == nil {
				_, err = old.WriteString("2026-01-01T00:00:02Z stdout F two\n")
				err = errors.Join(err, old.Close())
			}
			err = errors.Join(err, os.Rename(file.Path, rotatedName(file.Path, time.Unix(0, 0))),
				os.WriteFile(file.Path, []byte("2026-01-01T00:00:03Z stdout F three\n"), 0o600))
			if err != nil {
				t.Fatal(err)
			}
		}
		asked := 0
		ended := func() bool { asked++; return tt.ends || asked > 1 }
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err := Read(ctx, file, Options{Tail: -1, Stdout: true, Follow: true},
			&Output{W: &out, Limit: -1, Flush: turn}, ended)
		if out.String() != "one\ntwo\nthree\n" || err != nil || ctx.Err() != nil {
			t.Errorf("%s: %q, %v, %v", tt.name, out.String(), err, ctx.Err())
		}
		cancel()
	}
}

func TestTail(t *testing.T) {
	for _, tt := range []struct {
		name, text   string
		lines, bytes int
		want         string
	}{
		{"all", text, 80, 2048, "one\ntwo\nthree\nfour\n"},
		{"lines", text, 1, 2048, "four\n"},
		{"bytes", text, 80, 6, "\nfour\n"},
		{"Docker's format", `{"log":"one\n","stream":"stdout"}` + "\n", 80, 2048, "one\n"},
		{"nothing", "", 80, 2048, ""},
	} {
		if got := Tail(write(t, tt.text), tt.lines, tt.bytes); got != tt.want {
			t.Errorf("%s: %q", tt.name, got)
		}
	}
}

// TestRemove: a run's log goes with what was rotated, and no other's.
func TestRemove(t *testing.T) {
	file := write(t, text)
	for _, name := range []string{"0.log.20260101-000000", "1.log", "10.log"} {
		if err := os.WriteFile(filepath.Join(filepath.Dir(file.Path), name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := Remove(file); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(file.Path), "*"))
	if err != nil || len(left) != 2 || filepath.Base(left[0]) != "1.log" || filepath.Base(left[1]) != "10.log" {
		t.Errorf("left: %v, %v", left, err)
	}
	if err := Remove(file); err != nil {
		t.Errorf("again: %v", err)
	}
}

func TestNames(t *testing.T) {
	if got := filepath.Join(PodDir("/var/log/pods", "ns", "pod", "uid"), Name("c", 2)); got != "/var/log/pods/ns_pod_uid/c/2.log" {
		t.Error(got)
	}
	if got := Link("/var/log/containers", "pod", "ns", "c", "id"); got != "/var/log/containers/pod_ns_c-id.log" {
		t.Error(got)
	}
	if got := Link("-", "pod", "ns", "c", "id"); got != "" {
		t.Error(got)
	}
}
