package foreign

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"

	"github.com/shoal-project/shoal/cni/nft"
	"github.com/shoal-project/shoal/cni/nstest"
	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.CheckOurs(m) }

const bridge = "shoaltest0"

// short is the pause between two words of what changed.
const short = 50 * time.Millisecond

// watched is a network namespace with a bridge, and a watcher of it.
type watched struct {
	t          *testing.T
	ns         string
	rules, any <-chan struct{}
}

func watch(t *testing.T) *watched {
	w := &watched{t: t, ns: nstest.New(t)}
	w.run("ip link add " + bridge + " type bridge")
	w.run("ip addr add 10.1.0.1/24 dev " + bridge)
	w.run("ip link set " + bridge + " up")
	w.run("ip link set lo up")
	w.run("ip link add other0 type bridge")
	w.run("sysctl -qw net.ipv4.ip_forward=1")
	w.run("nft add table ip there")
	watcher := &Watcher{Bridge: bridge, pause: short}
	w.rules, w.any = watcher.Rules(), watcher.Any()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- nstest.In(w.ns, func() error { return watcher.Run(ctx) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	// It watches once it tells of something of each kind.
	w.hears(w.any, "ip addr add 10.9.0.1/32 dev lo", "ip addr del 10.9.0.1/32 dev lo")
	w.hears(w.rules, "nft add table ip before", "nft delete table ip before")
	return w
}

// hears makes changes until they are told, and until no more of them is.
func (w *watched) hears(told <-chan struct{}, changes ...string) {
	for deadline := time.Now().Add(10 * time.Second); len(told) == 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("nothing is told of %v", changes)
		}
		for _, c := range changes {
			w.run(c)
		}
	}
	for w.drain() {
		time.Sleep(settle + short + 300*time.Millisecond)
	}
}

func (w *watched) run(command string) {
	w.t.Helper()
	err := nstest.In(w.ns, func() error {
		f := strings.Fields(command)
		out, err := exec.Command(f[0], f[1:]...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w: %s", command, err, out)
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// drain takes what was told, and tells whether there was any.
func (w *watched) drain() (told bool) {
	for _, c := range []<-chan struct{}{w.rules, w.any} {
		select {
		case <-c:
			told = true
		default:
		}
	}
	return told
}

// told tells whether something is, within a time that is enough for it.
func told(c <-chan struct{}, within time.Duration) bool {
	select {
	case <-c:
		return true
	case <-time.After(within):
		return false
	}
}

// What others change is told, and what the pod network does all the time is not.
func TestTold(t *testing.T) {
	for _, c := range []struct {
		what       string
		do         []string
		rules, any bool
	}{
		{what: "a ruleset is flushed", do: []string{"nft flush ruleset"}, rules: true, any: true},
		{what: "a table of others", do: []string{"nft add table inet firewall"}, rules: true, any: true},
		{what: "forwarding is turned off", do: []string{"sysctl -qw net.ipv4.ip_forward=0"}, any: true},
		{what: "the bridge goes down", do: []string{"ip link set " + bridge + " down"}, any: true},
		{what: "the bridge is deleted", do: []string{"ip link del " + bridge}, any: true},
		{what: "an address goes", do: []string{"ip addr del 10.1.0.1/24 dev " + bridge}, any: true},
		{what: "routes go", do: []string{"ip route flush dev " + bridge}, any: true},
		{what: "an interface of others goes down", do: []string{"ip link set other0 up", "ip link set other0 down"}},
		{what: "pods come and go", do: []string{
			"ip link add vetha type veth peer name vethb", "ip link set vetha master " + bridge, "ip link set vetha up",
			"ip link set vethb up", "ip link del vetha"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			w := watch(t)
			for _, command := range c.do {
				w.run(command)
			}
			for _, k := range []struct {
				kind string
				c    <-chan struct{}
				want bool
			}{{"rules", w.rules, c.rules}, {"any", w.any, c.any}} {
				within := 500 * time.Millisecond
				if k.want {
					within = 10 * time.Second
				}
				if got := told(k.c, within); got != k.want {
					t.Errorf("%s: told %v", k.kind, got)
				}
			}
		})
	}
}

// Our own transactions are not told: they are those of processes of this name.
func TestOwnRules(t *testing.T) {
	w := watch(t)
	err := nstest.In(w.ns, func() error {
		c, err := nft.Open()
		if err != nil {
			return err
		}
		defer c.Close()
		o := nft.NewObjects(nft.Table{Family: nft.V4, Name: "own"})
		o.AddChain("input", nft.Hook{Kind: nft.Filter, At: nft.Prerouting, Priority: nft.PriorityRaw})
		o.AddRule("input", nft.DaddrIs(netip.MustParseAddr("192.0.2.1")), nft.Drop())
		return c.Reset(o)
	})
	if err != nil {
		t.Fatal(err)
	}
	if told(w.rules, 500*time.Millisecond) {
		t.Error("told")
	}
}

// FuzzMessages: whatever a message holds, it is judged without a panic.
func FuzzMessages(f *testing.F) {
	f.Add(uint16(16), make([]byte, 40))
	f.Add(uint16(80), []byte{2, 0, 0, 0, 8, 0, 1, 0, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, kind uint16, data []byte) {
		m := netlink.Message{Header: netlink.Header{Type: netlink.HeaderType(kind)}, Data: data}
		concerns(m, bridge)
		byAnother(m, "own")
	})
}
