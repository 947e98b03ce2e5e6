package firewalld

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/shoal-project/shoal/cni/nstest"
)

// The interface of the node's address comes first, then those of default routes; loopback
// and others are left out.
func TestUplinks(t *testing.T) {
	ns := nstest.New(t)
	var got []string
	err := nstest.In(ns, func() (err error) {
		for _, command := range []string{
			"link set lo up", "link add eth0 type veth peer name far0", "link add eth1 type veth peer name far1",
			"link add shoal0 type bridge", "link set eth0 up", "link set eth1 up", "link set far0 up", "link set far1 up",
			"link set shoal0 up", "addr add 192.0.2.1/24 dev eth0", "addr add 198.51.100.1/24 dev eth1",
			"addr add 10.96.0.10/32 dev lo", "route add default via 192.0.2.254", "route add 10.96.0.0/16 dev shoal0",
		} {
			if out, err := exec.Command("ip", strings.Fields(command)...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", command, err, out)
			}
		}
		got, err = Uplinks([]netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("10.96.0.10")})
		return err
	})
	if err != nil || fmt.Sprint(got) != "[eth1 eth0]" {
		t.Errorf("got %v, %v", got, err)
	}
}
