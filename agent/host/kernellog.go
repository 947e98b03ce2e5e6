package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// KernelLine is one message of the kernel itself.
type KernelLine struct {
	// Age is how old it was when it was read, by the kernel's own clock.
	Age  time.Duration
	Text string // escaped by the kernel: printable ASCII and \xNN
}

const (
	// maxKernelRecord is what the kernel gives at once at most.
	maxKernelRecord = 8 << 10
	// maxKernelText is what is kept of a message.
	maxKernelText = 1 << 10
	// kernelBurst lines are read without a pause, then so many more in each kernelPause:
	// a disk that dies can fill the log faster than it is worth reading. What the kernel
	// overwrites meanwhile is lost.
	kernelBurst = 256
	kernelPause = time.Second
	// kernelHistory lines of before at most are read without a pause.
	kernelHistory = 1 << 16
)

// FollowKernelLog gives each message of the kernel's log to take, until ctx ends: first
// those of before, then, after a call of caught, each that is written. Lines that a
// process wrote there are left out.
func FollowKernelLog(ctx context.Context, take func(KernelLine), caught func()) error {
	f, err := os.OpenFile("/dev/kmsg", os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	if err := isKernelLog(f); err != nil {
		return errors.Join(err, f.Close())
	}
	return followKernelLog(ctx, f, take, caught)
}

// isKernelLog fails for what stands in the log's place in containers and machines of
// systemd-nspawn: a pipe, which any process there writes.
func isKernelLog(f *os.File) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok || st.Mode()&os.ModeCharDevice == 0 || sys.Rdev != unix.Mkdev(1, 11) {
		return fmt.Errorf("%s is not the kernel's log", f.Name())
	}
	return nil
}

func followKernelLog(ctx context.Context, f *os.File, take func(KernelLine), caught func()) error {
	defer f.Close()
	stop := context.AfterFunc(ctx, func() { _ = f.Close() })
	defer stop()
	r, err := newRecords(f)
	if err != nil {
		return fmt.Errorf("read the kernel's log: %w", err)
	}
	buf := make([]byte, maxKernelRecord)
	var pace pace
	for n := 0; ; n++ {
		if (n == kernelHistory || r.dry) && caught != nil {
			caught()
			caught = nil
		}
		if caught == nil && pace.wait(ctx) != nil {
			return nil
		}
		b, err := r.next(buf, caught != nil)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINVAL):
			continue // nothing yet; or lines were overwritten before they were read, or one is too long
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read the kernel's log: %w", err)
		}
		if l, at, ok := parseKernelLine(b); ok {
			l.Age = max(0, sinceBoot()-at)
			take(l)
		}
	}
}

// records are read from a file one by one; dry is whether there was none once.
type records struct {
	conn syscall.RawConn
	dry  bool
}

func newRecords(f *os.File) (*records, error) {
	conn, err := f.SyscallConn()
	return &records{conn: conn}, err
}

// next reads a record. It waits for one, unless the first time that there is none is to
// be told, as EAGAIN.
func (r *records) next(buf []byte, tell bool) ([]byte, error) {
	n, failure := 0, error(nil)
	err := r.conn.Read(func(fd uintptr) bool {
		for {
			n, failure = unix.Read(int(fd), buf)
			if !errors.Is(failure, unix.EINTR) {
				break
			}
		}
		if !errors.Is(failure, unix.EAGAIN) {
			return true
		}
		r.dry = true
		return tell
	})
	switch {
	case err != nil:
		return nil, err
	case failure != nil:
		return nil, failure
	case n == 0:
		return nil, io.EOF
	}
	return buf[:n], nil
}

// pace lets a burst pass, and then as many in each pause.
type pace struct {
	count int
	since time.Time
}

func (p *pace) wait(ctx context.Context) error {
	if now := time.Now(); now.Sub(p.since) >= kernelPause {
		p.count, p.since = 0, now
	}
	if p.count++; p.count <= kernelBurst {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(kernelPause):
	}
	p.count, p.since = 1, time.Now()
	return nil
}

// sinceBoot is the clock of the kernel's log.
func sinceBoot() time.Duration {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return 0
	}
	return time.Duration(now.Nano())
}

// parseKernelLine reads a record of /dev/kmsg:
//
//	priority,number,microseconds since the boot,flags[,…];text
//	 KEY=value
//
// and returns when it was written. The facility, in the priority, is 0 for the kernel
// alone: what a process writes to the log never has it.
func parseKernelLine(b []byte) (l KernelLine, at time.Duration, ok bool) {
	head, text, ok := bytes.Cut(b, []byte(";"))
	if !ok || len(head) > 128 {
		return l, 0, false
	}
	fields := bytes.SplitN(head, []byte(","), 4)
	if len(fields) < 4 {
		return l, 0, false
	}
	priority, err1 := strconv.ParseUint(string(fields[0]), 10, 32)
	micros, err2 := strconv.ParseUint(string(fields[2]), 10, 53)
	if err1 != nil || err2 != nil || priority>>3 != 0 {
		return l, 0, false
	}
	text, _, _ = bytes.Cut(text, []byte("\n"))
	for _, c := range text {
		if c < ' ' || c > '~' {
			return l, 0, false
		}
	}
	l.Text = string(text[:min(len(text), maxKernelText)])
	return l, time.Duration(micros) * time.Microsecond, l.Text != ""
}
