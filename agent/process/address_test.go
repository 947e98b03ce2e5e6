package process

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/shoal-project/shoal/cni/nstest"
)

// short is long enough for addresses that change one after the other.
const short = 500 * time.Millisecond

// A machine's address goes and another comes, at once or later; one that comes back is no
// move, nor is a further one.
func TestMoved(t *testing.T) {
	const first, second = "192.0.2.1/24", "192.0.2.2/24"
	for _, c := range []struct {
		what string
		do   []func(netlink.Link) error
		want string
	}{
		{"comes back", []func(netlink.Link) error{without(first), with(first)}, ""},
		{"a further one", []func(netlink.Link) error{with(second)}, ""},
		{"goes", []func(netlink.Link) error{without(first)}, ""},
		{"another", []func(netlink.Link) error{without(first), with(second)}, "192.0.2.2"},
		{"another later", []func(netlink.Link) error{without(first), later, with(second)}, "192.0.2.2"},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			ns := nstest.New(t)
			err := nstest.In(ns, func() error {
				lo, err := netlink.LinkByName("lo")
				if err != nil {
					return err
				}
				if err := errors.Join(netlink.LinkSetUp(lo), with(first)(lo)); err != nil {
					return err
				}
				changed := make(chan error, 1)
				go func() {
					changed <- nstest.In(ns, func() error {
						for _, do := range c.do {
							if err := do(lo); err != nil {
								return err
							}
						}
						return nil
					})
				}()
				ctx, cancel := context.WithTimeout(t.Context(), 4*short)
				defer cancel()
				got, err := moved(ctx, short, []netip.Addr{netip.MustParseAddr("192.0.2.1")}, own)
				var want []netip.Addr
				if c.want != "" {
					want = []netip.Addr{netip.MustParseAddr(c.want)}
				}
				if err != nil || !slices.Equal(got, want) {
					t.Errorf("%v, %v", got, err)
				}
				return <-changed
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

func with(address string) func(netlink.Link) error {
	return func(l netlink.Link) error {
		a, err := netlink.ParseAddr(address)
		if err != nil {
			return err
		}
		return netlink.AddrAdd(l, a)
	}
}

func without(address string) func(netlink.Link) error {
	return func(l netlink.Link) error {
		a, err := netlink.ParseAddr(address)
		if err != nil {
			return err
		}
		return netlink.AddrDel(l, a)
	}
}

func later(netlink.Link) error { time.Sleep(short + short/2); return nil }

// own are the addresses but for loopback ones.
func own() (out []netip.Addr, err error) {
	list, err := net.InterfaceAddrs()
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLoopback() {
			out = append(out, p.Addr())
		}
	}
	return out, err
}
