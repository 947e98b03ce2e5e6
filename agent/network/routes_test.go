package network

import (
	"context"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/cni/cidr"
)

// group is a gossip that always knows the same members.
type group []gossip.Member

func (g group) Members() []gossip.Member { return g }
func (g group) Changed() <-chan struct{} { return nil }

// TestRoutesComeBack: an interface that went down, or another program, takes the
// routes to other nodes' pods; nobody tells of it, the gossip knows the same members.
func TestRoutesComeBack(t *testing.T) {
	m := newManager(t)
	command(t, "ip link add up0 type veth peer name up1")
	t.Cleanup(func() { command(t, "ip link del up0") })
	command(t, "ip addr add 192.0.2.1/24 dev up0")
	command(t, "ip link set up0 up")
	command(t, "ip link set up1 up")
	if err := m.SetPodCIDRs(cidr.Parse("10.244.3.0/24")); err != nil {
		t.Fatal(err)
	}
	other := gossip.Member{
		Name: "other", Meta: gossip.Meta{Role: gossip.RoleAgent},
		PodCIDRs: cidr.Parse("10.244.9.0/24"), NodeIPs: []netip.Addr{netip.MustParseAddr("192.0.2.2")},
	}
	there := func(when string) {
		t.Helper()
		if routes := command(t, "ip route show 10.244.9.0/24"); !strings.Contains(routes, "via 192.0.2.2") {
			t.Errorf("%s: routes %q", when, routes)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		m.wake = make(chan struct{}, 1) // of this bubble
		go func() { ended <- m.Run(ctx, group{other}) }()
		synctest.Wait()
		there("at first")
		for _, loss := range []string{"ip route del 10.244.9.0/24", "ip link set up0 down"} {
			command(t, loss)
			command(t, "ip link set up0 up")
			time.Sleep(checkEvery)
			synctest.Wait()
			there("after " + loss)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func command(t *testing.T, line string) string {
	t.Helper()
	words := strings.Fields(line)
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", line, err, out)
	}
	return string(out)
}
