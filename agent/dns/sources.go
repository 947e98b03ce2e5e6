package dns

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/shoal-project/shoal/cni/cidr"
)

// lookAgain is how often the addresses are read anew at most, when a query
// comes from one that is not known: a pod that was just made.
const lookAgain = 50 * time.Millisecond

// sources tells whose queries are answered: those of this node's pods and of
// the node itself. The addresses of the DNS server are reachable from the
// node's networks too, as the kernel answers for any of its addresses on
// every interface.
type sources struct {
	pods func() cidr.Prefixes // ranges and single addresses; nil = none

	mu     sync.Mutex
	read   time.Time
	single map[netip.Addr]struct{}
	ranges cidr.Prefixes
}

func (s *sources) known(a netip.Addr, now time.Time) bool {
	if a.IsLoopback() {
		return true // the kernel takes none from outside
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.has(a) {
		return true
	}
	if now.Sub(s.read) < lookAgain {
		return false
	}
	s.read = now
	s.look()
	return s.has(a)
}

func (s *sources) has(a netip.Addr) bool {
	if _, ok := s.single[a]; ok {
		return true
	}
	return s.ranges.Contains(a)
}

func (s *sources) look() {
	s.single, s.ranges = map[netip.Addr]struct{}{}, nil
	local, err := net.InterfaceAddrs()
	if err != nil {
		s.read = time.Time{} // look again at the next query
	}
	for _, l := range local {
		if p, err := netip.ParsePrefix(l.String()); err == nil {
			s.single[p.Addr()] = struct{}{}
		}
	}
	if s.pods == nil {
		return
	}
	for _, p := range s.pods() {
		if p.IsSingleIP() {
			s.single[p.Addr()] = struct{}{}
		} else {
			s.ranges = append(s.ranges, p)
		}
	}
}
