package process

import (
	"context"
	"testing"
)

// The clock of a test machine is nobody's to set: that the watch ends is all that is
// tested here.
func TestWatchClockEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- WatchClock(ctx, func() {}) }()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
