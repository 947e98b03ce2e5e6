package gatewaystream

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestPace: in a storm of changes a tenth of the time is spent on them, at most, and none is
// left longer than restMost; a change after a while is not delayed.
func TestPace(t *testing.T) {
	for _, took := range []time.Duration{time.Millisecond, 100 * time.Millisecond, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			var p pace
			if p.wait() != 0 {
				t.Errorf("the first waits %v", p.wait())
			}
			begin, spent := time.Now(), time.Duration(0)
			for time.Since(begin) < 100*time.Second {
				time.Sleep(p.wait())
				began := time.Now()
				time.Sleep(took)
				spent += took
				p.done(began)
				if p.wait() > restMost {
					t.Errorf("after %v it waits %v", took, p.wait())
				}
			}
			if spent > 10*time.Second+took {
				t.Errorf("of 100 s %v were spent, %v at a time", spent, took)
			}
			time.Sleep(restMost)
			if p.wait() != 0 {
				t.Errorf("after a while it waits %v", p.wait())
			}
		})
	}
}
