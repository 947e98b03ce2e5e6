package host

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestParseKernelLine(t *testing.T) {
	for _, c := range []struct{ give, want string }{
		{"3,12,1500000,-;EXT4-fs error (device vda): x\n SUBSYSTEM=block\n DEVICE=b254:0\n", "EXT4-fs error (device vda): x"},
		{"6,12,1500000,-,caller=T1;text; with a semicolon", "text; with a semicolon"},
		{"6,12,1500000,c;" + strings.Repeat("x", 3000), strings.Repeat("x", maxKernelText)},
		{`4,1,1,-;task \x0a`, `task \x0a`},
		{"11,12,1500000,-;facility 1 is a process's", ""},
		{"30,12,1500000,-;so is 3", ""},
		{"6,12,1500000,-;two\x01", ""},
		{"6,12,1500000,-;\u00e4", ""},
		{"6,12,1500000;short", ""},
		{"6,12,-1,-;x", ""},
		{"6,12,99999999999999999999,-;x", ""},
		{"x,12,1,-;x", ""},
		{"6,12,1,-;", ""},
		{strings.Repeat("6", 200) + ",12,1,-;x", ""},
		{"no record", ""},
	} {
		l, at, ok := parseKernelLine([]byte(c.give))
		if l.Text != c.want || ok != (c.want != "") {
			t.Errorf("%.60q: %.60q, %v", c.give, l.Text, ok)
		}
		if strings.Contains(c.give, "1500000,-") && ok && at != 1500*time.Millisecond {
			t.Errorf("%.60q: at %v", c.give, at)
		}
	}
}

func FuzzKernelLine(f *testing.F) {
	f.Add([]byte("3,12,1500000,-;EXT4-fs error (device vda): x\n SUBSYSTEM=block\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, at, ok := parseKernelLine(b)
		if ok == (l.Text == "") || len(l.Text) > maxKernelText || at < 0 || strings.ContainsAny(l.Text, "\n\x00") {
			t.Errorf("%q: %q %v %v", b, l.Text, at, ok)
		}
	})
}

// What is in the log is read without a pause, then it is told that all was, then each
// line when it is written; each line is one read, as of the kernel's.
func TestFollowKernelLog(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ctx, cancel := context.WithCancel(t.Context())
	lines, caught, done := make(chan KernelLine, 10), make(chan struct{}), make(chan error)
	go func() {
		done <- followKernelLog(ctx, r, func(l KernelLine) { lines <- l }, func() { close(caught) })
	}()
	<-caught
	for i := range 3 {
		fmt.Fprintf(w, "6,%d,1,-;line %d\n", i, i)
		if l := <-lines; l.Text != fmt.Sprint("line ", i) || l.Age < time.Millisecond {
			t.Errorf("%+v", l)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A log that is filled faster than it is worth reading costs a bounded number of lines
// a second.
func TestKernelLogHasAPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pace
		began := time.Now()
		for range 3 * kernelBurst {
			if err := p.wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took != 2*kernelPause {
			t.Errorf("three bursts took %v", took)
		}
		time.Sleep(kernelPause)
		began = time.Now()
		for range kernelBurst {
			_ = p.wait(t.Context())
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("a burst after a rest took %v", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if p.wait(ctx) == nil {
			t.Error("the end is not waited for")
		}
	})
}

// A pipe, or another device, is not taken for the kernel's log.
func TestOnlyTheKernelsLog(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, f := range []*os.File{r, null} {
		if isKernelLog(f) == nil {
			t.Errorf("%s is taken for it", f.Name())
		}
	}
}

// The kernel's own log is read from its beginning to what is there now.
func TestKernelsLog(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	err := FollowKernelLog(ctx, func(KernelLine) { n++ }, cancel)
	if err != nil {
		t.Skip(err) // no right to read it
	}
	if n == 0 {
		t.Error("no line")
	}
}
