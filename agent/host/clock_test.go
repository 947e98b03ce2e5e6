package host

import (
	"context"
	"testing"
	"time"
)

// The clock of a test machine is nobody's to set: that the watch ends is all that is
// tested here, and that the two clocks run alike.
func TestWatchClockEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- WatchClock(ctx, func() {}) }()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestNow(t *testing.T) {
	before := time.Now()
	now := Now()
	if now.Wall.Before(before.Round(0)) || now.Boot <= 0 {
		t.Errorf("%+v", now)
	}
}
