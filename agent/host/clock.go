package host

import (
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
