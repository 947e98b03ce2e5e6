package host

import (
	"testing"
	"time"
)

// The two clocks run alike.
func TestNow(t *testing.T) {
	before := time.Now()
	now := Now()
	if now.Wall.Before(before.Round(0)) || now.Boot <= 0 {
		t.Errorf("%+v", now)
	}
}
