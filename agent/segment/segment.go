package segment

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"
)

// MAC is an Ethernet address.
type MAC [6]byte

func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// Word is that a machine says that an address is at it, or asks by Ask who has it.
type Word struct {
	Addr netip.Addr
	MAC  MAC
	Asks bool
}

// Link is one family's part of a network.
type Link interface {
	// Run hears and answers until ctx ends, or the interface is gone.
	Run(ctx context.Context) error
	// Answer has those who ask for these addresses told these machines, until a time.
	Answer(table map[netip.Addr]MAC, until time.Time)
	// Claim tells all machines that an address is at this one.
	Claim(a netip.Addr) error
	// Ask asks for an address; the answer is heard as a Word.
	Ask(a netip.Addr) error
	// MAC is this machine's on the network.
	MAC() MAC
}

// Open speaks for addresses of one family on an interface, and gives heard each word of
// others. heard must not block.
func Open(ifi *net.Interface, ipv6 bool, heard func(Word)) (Link, error) {
	if len(ifi.HardwareAddr) != len(MAC{}) {
		return nil, fmt.Errorf("interface %s has no Ethernet address", ifi.Name)
	}
	if ipv6 {
		return openNDP(ifi, heard)
	}
	return openARP(ifi, heard)
}

// answers is who is told for what, and until when.
type answers struct {
	table map[netip.Addr]MAC
	until time.Time
}

// answering is shared by the one who decides and the one who answers.
type answering struct{ p atomic.Pointer[answers] }

func (a *answering) set(table map[netip.Addr]MAC, until time.Time) { a.p.Store(&answers{table, until}) }

func (a *answering) of(addr netip.Addr) (MAC, bool) {
	now := a.p.Load()
	if now == nil || !time.Now().Before(now.until) {
		return MAC{}, false
	}
	m, ok := now.table[addr]
	return m, ok
}

// receiveBuffer bounds what waits in the kernel: a flood of questions costs answers, not
// memory.
const receiveBuffer = 256 << 10
