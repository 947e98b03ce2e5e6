package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// besides is a second process of the rig that runs scenarios beside this one.
type besides struct {
	cmd            *exec.Cmd
	out            io.ReadCloser
	read           chan struct{}
	passed, failed int
}

// startBeside starts the waiting scenarios.
func startBeside(ctx context.Context, o options) (*besides, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "-only", strings.Join(waiting, ","), "-bin", o.bin, "-cache", o.cache,
		"-go", o.gotool, "-rotations", fmt.Sprint(o.rotations), fmt.Sprintf("-keep=%t", o.keep))
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 5 * time.Minute // it takes its machines down
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	b := &besides{cmd: cmd, out: out, read: make(chan struct{})}
	go b.pass()
	return b, nil
}

// pass prints what it says as its own, but the sums, and counts its steps.
func (b *besides) pass() {
	defer close(b.read)
	for lines := bufio.NewScanner(b.out); lines.Scan(); {
		l := lines.Text()
		switch {
		case strings.HasPrefix(l, "ok "):
			b.passed++
		case strings.HasPrefix(l, "FAIL "):
			b.failed++
		case strings.HasSuffix(l, " failed") && strings.Contains(l, " steps passed, "):
			continue
		}
		fmt.Println(l)
	}
	_, _ = io.Copy(io.Discard, b.out) // a line that is too long for the scanner
}

// wait waits until all of it is done.
func (b *besides) wait() error {
	<-b.read
	return b.cmd.Wait()
}
