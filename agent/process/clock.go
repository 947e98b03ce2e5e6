package process

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

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
