package host

import (
	"errors"
	"io/fs"
	"os"
	"testing"
	"time"
)

const statOfTask = "77 (a) S) D 1 77 77 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 12345 99 1 2 3\n"

func TestParseTask(t *testing.T) {
	const status = "Name:\ta) S\nState:\tD (disk sleep)\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t3\n"
	for _, c := range []struct {
		what, stat, status string
		want               Task
		ok                 bool
	}{
		{"a name that lies", statOfTask, status,
			Task{Started: 123450 * time.Millisecond, Waiting: true, Switches: 10}, true},
		{"no name", "77 a D 1", status, Task{}, false},
		{"cut off", "77 (a) D 1 77", status, Task{}, false},
		{"no switches", statOfTask, "Name: a\n", Task{}, false},
		{"no number", statOfTask, "voluntary_ctxt_switches:\tx\n", Task{}, false},
	} {
		got, ok := parseTask([]byte(c.stat), []byte(c.status))
		if ok != c.ok || ok && got != c.want {
			t.Errorf("%s: %+v, %v", c.what, got, ok)
		}
	}
}

func TestReadTask(t *testing.T) {
	before := sinceBoot() + time.Hour // of a machine that slept, more
	own, err := ReadTask(os.Getpid())
	if err != nil || own.Started <= 0 || own.Started > before {
		t.Errorf("%+v, %v", own, err)
	}
	if _, err := ReadTask(1 << 30); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func FuzzTask(f *testing.F) {
	f.Add([]byte(statOfTask), []byte("voluntary_ctxt_switches:\t7\n"))
	f.Add([]byte("1 () D 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 549755813887 0"), []byte("nonvoluntary_ctxt_switches: 0"))
	f.Fuzz(func(t *testing.T, stat, status []byte) {
		if got, ok := parseTask(stat, status); ok && got.Started < 0 {
			t.Errorf("%+v", got)
		}
	})
}
