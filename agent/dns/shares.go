package dns

import (
	"net/netip"
	"sync"
)

// shares divides a number of places among clients so that none can take them
// all: a client gets another one while it holds fewer than are free (dynamic
// thresholds, Choudhury and Hahne 1998). A single client can hold half of the
// places, and whoever comes next still finds one.
type shares struct {
	mu   sync.Mutex
	free int
	held map[netip.Addr]int
}

func newShares(places int) *shares { return &shares{free: places, held: map[netip.Addr]int{}} }

// take gets a place for client, false when it has its share.
func (s *shares) take(client netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[client] >= s.free {
		return false
	}
	s.free--
	s.held[client]++
	return true
}

// give returns a place.
func (s *shares) give(client netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free++
	if s.held[client]--; s.held[client] == 0 {
		delete(s.held, client)
	}
}
