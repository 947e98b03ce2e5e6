package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Instant is one moment by two clocks: that of the wall, which can be set, and that of
// the time since the boot, which cannot.
type Instant struct {
	Wall time.Time
	Boot time.Duration
}

// Now reads both clocks.
func Now() Instant {
	var boot unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil {
		return Instant{Wall: time.Now().Round(0)}
	}
	return Instant{Wall: time.Now().Round(0), Boot: time.Duration(boot.Nano())}
}

// Synchronized tells whether something keeps the clock right, as the kernel knows it.
func Synchronized() bool {
	var t unix.Timex
	_, err := unix.Adjtimex(&t)
	return err == nil && t.Status&unix.STA_UNSYNC == 0
}

// WatchClock calls set whenever somebody set the clock, until ctx ends; small steps, by
// which it is kept right, are told too.
func WatchClock(ctx context.Context, set func()) error {
	fd, err := unix.TimerfdCreate(unix.CLOCK_REALTIME, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("watch the clock: %w", err)
	}
	f := os.NewFile(uintptr(fd), "timerfd")
	defer f.Close()
	stop := context.AfterFunc(ctx, func() { _ = f.Close() })
	defer stop()
	// A timer that never ends, and is cancelled when the clock is set.
	never := unix.ItimerSpec{Value: unix.Timespec{Sec: 1 << 40}}
	var buf [8]byte
	for {
		err := unix.TimerfdSettime(fd, unix.TFD_TIMER_ABSTIME|unix.TFD_TIMER_CANCEL_ON_SET, &never, nil)
		if err != nil && !errors.Is(err, unix.ECANCELED) {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("watch the clock: %w", err)
		}
		_, err = f.Read(buf[:])
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !errors.Is(err, unix.ECANCELED):
			return fmt.Errorf("watch the clock: %w", err)
		}
		set()
	}
}
