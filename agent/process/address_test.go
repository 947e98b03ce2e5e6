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

// A machine's address goes and another comes, with a moment between in which none is there;
// one that comes back at once is no move, nor is a further one.
func TestMoved(t *testing.T) {
	t.Parallel()
	const first, second = "192.0.2.1/24", "192.0.2.2/24"
	ns := nstest.New(t)
	err := nstest.In(ns, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			return err
		}
		change := func(do func(netlink.Link, *netlink.Addr) error, address string) {
			a, err := netlink.ParseAddr(address)
			if err == nil {
				err = do(lo, a)
			}
			if err != nil {
				t.Error(err)
			}
		}
		find := func() (out []netip.Addr, err error) {
			list, err := net.InterfaceAddrs()
			for _, a := range list {
				if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLoopback() {
					out = append(out, p.Addr())
				}
			}
			if len(out) == 0 {
				err = errors.New("none")
			}
			return out, err
		}
		had := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
		change(netlink.AddrAdd, first)
		for _, c := range []struct {
			what string
			do   func()
			want []netip.Addr
		}{
			{"comes back", func() { change(netlink.AddrDel, first); change(netlink.AddrAdd, first) }, nil},
			{"a further one", func() { change(netlink.AddrAdd, "198.51.100.1/24") }, nil},
			{"goes", func() { change(netlink.AddrDel, "198.51.100.1/24"); change(netlink.AddrDel, first) }, nil},
			{"another", func() { change(netlink.AddrAdd, second) }, []netip.Addr{netip.MustParseAddr("192.0.2.2")}},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), patience+2*time.Second)
			go func() {
				time.Sleep(100 * time.Millisecond)
				_ = nstest.In(ns, func() error { c.do(); return nil })
			}()
			got, err := Moved(ctx, had, find)
			cancel()
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%s: %v, %v", c.what, got, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
