package keeper

import (
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Clock is the time since the machine's start, that of suspends included.
func Clock() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic("keeper: no CLOCK_BOOTTIME: " + err.Error()) // every Linux since 2.6.39 has it
	}
	return time.Duration(t.Nano())
}

// SleepUntil returns when Clock has reached at, or ctx ends, or woken holds a token. Go's
// timers stand still while the machine is suspended, a timerfd does not.
func SleepUntil(ctx context.Context, at time.Duration, woken <-chan struct{}) error {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return os.NewSyscallError("timerfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "timerfd")
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(1, at.Nanoseconds()))}
	if err := unix.TimerfdSettime(fd, unix.TFD_TIMER_ABSTIME, &spec, nil); err != nil {
		return os.NewSyscallError("timerfd_settime", withClosed(f, err))
	}
	fired := make(chan struct{})
	go func() {
		defer close(fired)
		_, _ = f.Read(make([]byte, 8)) // ends with the file
	}()
	select {
	case <-fired:
	case <-ctx.Done():
	case <-woken:
	}
	err = f.Close()
	<-fired
	return err
}

func withClosed(f *os.File, err error) error {
	_ = f.Close() // err tells what went wrong
	return err
}
