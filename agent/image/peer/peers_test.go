package peer

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestBansEnd: a node that was not reached is asked again after a time.
func TestBansEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := lonely()
		p.ban("a", time.Minute)
		if got := p.bans(); len(got) != 1 {
			t.Errorf("%v are not asked", got)
		}
		time.Sleep(2 * time.Minute)
		if got := p.bans(); len(got) != 0 {
			t.Errorf("%v are still not asked", got)
		}
	})
}
