package process

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
)

// patience is how long addresses may be away that come back, as while a network manager
// is restarted, and how often one is looked for that takes the place of another: nothing
// tells when a route to the world comes after the address.
const patience = 5 * time.Second

// Moved waits until an address that this machine had is not its own any more and find,
// which looks as for a start, has others: these are returned (a new lease of DHCP, a
// virtual machine that was moved). Loopback addresses count as away: a machine that
// began without a network may get one. It returns nothing once ctx ends, and an error
// where the kernel does not tell of addresses.
func Moved(ctx context.Context, had []netip.Addr, find func() ([]netip.Addr, error)) ([]netip.Addr, error) {
	return moved(ctx, patience, had, find)
}

func moved(
	ctx context.Context, patience time.Duration, had []netip.Addr, find func() ([]netip.Addr, error),
) ([]netip.Addr, error) {
	events := make(chan netlink.AddrUpdate)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := netlink.AddrSubscribe(events, ctx.Done()); err != nil {
		return nil, fmt.Errorf("follow this machine's addresses: %w", err)
	}
	defer func() {
		cancel()
		for range events { // until the library closes it
		}
	}()
	check := time.NewTimer(patience) // also for what came before
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, nil
		case _, open := <-events:
			if !open {
				return nil, errors.New("follow this machine's addresses: the kernel tells no more")
			}
			check.Reset(patience)
		case <-check.C:
			lost, err := missing(had)
			if err != nil || !lost {
				break
			}
			if now, err := find(); err == nil && usable(now) && !slices.Equal(now, had) {
				return now, nil
			}
			check.Reset(patience)
		}
	}
}

// missing tells whether one of the addresses is not this machine's.
func missing(list []netip.Addr) (bool, error) {
	have, err := net.InterfaceAddrs()
	if err != nil {
		return false, err
	}
	own := map[netip.Addr]bool{}
	for _, a := range have {
		if n, ok := a.(*net.IPNet); ok {
			ip, _ := netip.AddrFromSlice(n.IP)
			own[ip.Unmap()] = true
		}
	}
	return slices.ContainsFunc(list, func(a netip.Addr) bool { return a.IsLoopback() || !own[a.Unmap()] }), nil
}

func usable(list []netip.Addr) bool {
	return len(list) > 0 && !slices.ContainsFunc(list, netip.Addr.IsLoopback)
}
