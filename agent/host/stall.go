package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// WatchStall leaves a token in the channel that it returns whenever tasks of the machine
// had to wait for a resource ("memory") for so much of a window of time, at most once a
// window, until ctx ends (psi(7), triggers). The error says why the kernel does not tell.
func WatchStall(ctx context.Context, resource string, stalled, window time.Duration) (<-chan struct{}, error) {
	f, err := trigger(resource, stalled, window)
	if err != nil {
		return nil, err
	}
	end, closed, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	told := make(chan struct{}, 1)
	context.AfterFunc(ctx, func() { _ = closed.Close() })
	go func() {
		defer f.Close()
		defer end.Close()
		fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLPRI}, {Fd: int32(end.Fd()), Events: unix.POLLIN}}
		for {
			_, err := unix.Poll(fds, -1)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			// POLLERR on the first is the end of its source.
			if err != nil || fds[1].Revents != 0 || fds[0].Revents&(unix.POLLERR|unix.POLLNVAL) != 0 {
				return
			}
			if fds[0].Revents&unix.POLLPRI != 0 {
				select {
				case told <- struct{}{}:
				default:
				}
			}
		}
	}()
	return told, nil
}

// coarse is what windows are multiples of for those without CAP_SYS_RESOURCE.
const coarse = 2 * time.Second

// trigger opens the resource's file with a trigger in it.
func trigger(resource string, stalled, window time.Duration) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(proc, "pressure", resource), os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	// The kernel puts the end of the text in the place of the last byte.
	if _, err = fmt.Fprintf(f, "some %d %d\x00", stalled.Microseconds(), window.Microseconds()); err == nil {
		return f, nil
	}
	err = errors.Join(err, f.Close())
	if longer := (window + coarse - 1).Truncate(coarse); errors.Is(err, unix.EINVAL) && longer != window {
		return trigger(resource, time.Duration(float64(stalled)*float64(longer)/float64(window)), longer)
	}
	return nil, err
}
