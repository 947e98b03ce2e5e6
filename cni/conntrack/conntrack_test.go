package conntrack

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/cni/nstest"
	"github.com/shoal-project/shoal/cni/sctptest"
)

// TestEnd: of flows of UDP and SCTP the ones that match are ended, whose ports are known.
func TestEnd(t *testing.T) {
	ns := nstest.New(t)
	if err := nstest.In(ns, func() error { return endThem(t) }); err != nil {
		t.Fatal(err)
	}
}

func endThem(t *testing.T) error {
	begin := "ip link set lo up; for f in ip ip6; do nft add table $f t; " +
		"nft \"add chain $f t c { type filter hook output priority 0; }\"; nft add rule $f t c ct state new accept; done"
	if out, err := exec.Command("sh", "-ec", begin).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	for _, to := range []string{"127.0.0.1:53", "127.0.0.1:54", "[::1]:53"} {
		c, err := net.Dial("udp", to)
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := c.Write([]byte("?")); err != nil {
			return err
		}
	}
	raw, err := net.Dial("ip4:132", "127.0.0.1")
	if err != nil {
		return err
	}
	defer raw.Close()
	for _, to := range []uint16{53, 54} {
		m := sctptest.Message{From: 5000, To: to, Chunk: sctptest.ChunkInit, Value: sctptest.Beginning(7)}
		if _, err := raw.Write(m.Bytes()); err != nil {
			return err
		}
	}
	check := func(family uint8, want ...string) {
		t.Helper()
		var got []string
		if err := End(family, func(f Flow) bool {
			if f.Proto == unix.IPPROTO_UDP || f.Proto == unix.IPPROTO_SCTP {
				got = append(got, fmt.Sprint(f.Proto, " ", f.To, " ", f.By))
			}
			return false
		}); err != nil {
			t.Error(err)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("there is %q, want %q", got, want)
		}
	}
	check(unix.AF_INET, "132 127.0.0.1:53 127.0.0.1:53", "132 127.0.0.1:54 127.0.0.1:54",
		"17 127.0.0.1:53 127.0.0.1:53", "17 127.0.0.1:54 127.0.0.1:54")
	check(unix.AF_INET6, "17 [::1]:53 [::1]:53")
	for _, gone := range []Flow{
		{unix.IPPROTO_SCTP, netip.MustParseAddrPort("127.0.0.1:53"), netip.MustParseAddrPort("127.0.0.1:53")},
		{unix.IPPROTO_UDP, netip.MustParseAddrPort("127.0.0.1:54"), netip.MustParseAddrPort("127.0.0.1:54")},
	} {
		if err := End(unix.AF_INET, func(f Flow) bool { return f == gone }); err != nil {
			return err
		}
	}
	check(unix.AF_INET, "132 127.0.0.1:54 127.0.0.1:54", "17 127.0.0.1:53 127.0.0.1:53")
	return nil
}

// FuzzParse: what is no entry of the list is an error, and no more.
func FuzzParse(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0})
	f.Add([]byte{2, 0, 0, 0, 12, 0, 1, 128, 8, 0, 1, 128, 4, 0, 1, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := parse(data)
		if short := len(data) < header; short != errors.Is(err, errShort) || short && got != (Flow{}) {
			t.Errorf("%+v, %v of %d bytes", got, err, len(data))
		}
	})
}
