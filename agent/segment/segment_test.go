package segment

import (
	"context"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoal-project/shoal/cni/nstest"
	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.Check(m) }

// side is a machine on a network of two.
type side struct {
	t    *testing.T
	ns   string
	mac  MAC
	link Link
	said chan Word
}

func run(t *testing.T, ns string, commands ...string) {
	t.Helper()
	for _, c := range commands {
		err := nstest.In(ns, func() error {
			words := strings.Fields(c)
			out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
			if err != nil {
				t.Logf("%s: %s", c, out)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// newPair makes two machines: one that speaks by this package, and one.
func newPair(t *testing.T, ipv6 bool) (speaker, other side) {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	ns := []string{nstest.New(t), nstest.New(t)}
	run(t, ns[0], "ip link add eth0 type veth peer name eth1", "ip link set eth1 netns "+ns[1])
	for i, dev := range []string{"eth0", "eth1"} {
		octet := string('1' + rune(i))
		run(t, ns[i], "ip addr add 192.0.2."+octet+"/24 dev "+dev, "ip addr add 2001:db8::"+octet+"/64 dev "+dev+" nodad",
			"ip link set "+dev+" addrgenmode none up", "ip addr add fe80::"+octet+"/64 dev "+dev+" nodad")
	}
	time.Sleep(100 * time.Millisecond) // until both have a carrier
	sides := make([]side, 2)
	for i, dev := range []string{"eth0", "eth1"} {
		s := side{t: t, ns: ns[i], said: make(chan Word, 100)}
		err := nstest.In(s.ns, func() error {
			ifi, err := net.InterfaceByName(dev)
			if err != nil {
				return err
			}
			s.mac = MAC(ifi.HardwareAddr)
			s.link, err = Open(ifi, ipv6, func(w Word) { s.said <- w })
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- nstest.In(s.ns, func() error { return s.link.Run(ctx) }) }()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		sides[i] = s
	}
	return sides[0], sides[1]
}

// speaks says something from the side's own namespace, where its interface's name means
// something.
func (s side) speaks(what func(Link, netip.Addr) error, a netip.Addr) error {
	return nstest.In(s.ns, func() error { return what(s.link, a) })
}

// hears waits for a word.
func (s side) hears(want Word) bool {
	late := time.After(2 * time.Second)
	for {
		select {
		case w := <-s.said:
			if w == want {
				return true
			}
		case <-late:
			return false
		}
	}
}

// resolves tells what the kernel of a side takes for an address's MAC; patience is longer
// than its own between questions.
func (s side) resolves(a netip.Addr, dev string, patience time.Duration) (mac string) {
	_ = nstest.In(s.ns, func() error {
		c, err := net.Dial("udp", netip.AddrPortFrom(a, 9).String())
		if err != nil {
			return err
		}
		defer c.Close()
		for end := time.Now().Add(patience); mac == "" && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			_, _ = c.Write([]byte("anybody?"))
			out, err := exec.Command("ip", "neigh", "show", a.String(), "dev", dev).CombinedOutput()
			if err != nil {
				return err
			}
			words := strings.Fields(string(out))
			if i := slices.Index(words, "lladdr"); i >= 0 {
				mac = words[i+1]
			}
		}
		return nil
	})
	return mac
}

func TestAnswers(t *testing.T) {
	for _, tt := range []struct {
		name string
		addr netip.Addr
	}{
		{"IPv4", netip.MustParseAddr("192.0.2.9")},
		{"IPv6", netip.MustParseAddr("2001:db8::9")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			speaker, other := newPair(t, tt.addr.Is6())
			if mac := other.resolves(tt.addr, "eth1", time.Second); mac != "" {
				t.Fatalf("%s is at %s before anybody said so", tt.addr, mac)
			}
			speaker.link.Answer(map[netip.Addr]MAC{tt.addr: speaker.mac}, time.Now().Add(time.Minute))
			if mac := other.resolves(tt.addr, "eth1", 5*time.Second); mac != speaker.mac.String() {
				t.Errorf("the kernel has %q for %s, which is at %s", mac, tt.addr, speaker.mac)
			}
			if err := other.speaks(Link.Ask, tt.addr); err != nil {
				t.Fatal(err)
			}
			if !other.hears(Word{Addr: tt.addr, MAC: speaker.mac}) {
				t.Error("no answer to a question")
			}
			if !speaker.hears(Word{Addr: tt.addr, MAC: other.mac, Asks: true}) {
				t.Error("a question was not heard")
			}

			// For another machine: that is no word of its own.
			speaker.link.Answer(map[netip.Addr]MAC{tt.addr: {2, 0, 0, 0, 0, 7}}, time.Now().Add(time.Minute))
			run(t, other.ns, "ip neigh flush dev eth1")
			if mac := other.resolves(tt.addr, "eth1", 5*time.Second); mac != "02:00:00:00:00:07" {
				t.Errorf("the kernel has %q", mac)
			}
			for len(other.said) > 0 {
				if w := <-other.said; w.Addr == tt.addr && w.MAC != speaker.mac {
					t.Errorf("heard %v", w)
				}
			}

			// A claim moves it at once.
			if err := speaker.speaks(Link.Claim, tt.addr); err != nil {
				t.Fatal(err)
			}
			if !other.hears(Word{Addr: tt.addr, MAC: speaker.mac}) {
				t.Error("a claim was not heard")
			}
			if out := other.resolves(tt.addr, "eth1", 5*time.Second); out != speaker.mac.String() {
				t.Errorf("after a claim the kernel has %q", out)
			}

			// Answers end by themselves.
			speaker.link.Answer(map[netip.Addr]MAC{tt.addr: speaker.mac}, time.Now())
			run(t, other.ns, "ip neigh flush dev eth1")
			if mac := other.resolves(tt.addr, "eth1", time.Second); mac != "" {
				t.Errorf("%s is still at %s", tt.addr, mac)
			}
		})
	}
}

// TestKernelIsHeard: a machine's kernel answers for the address of its interface.
func TestKernelIsHeard(t *testing.T) {
	for _, tt := range []struct {
		name string
		addr netip.Addr
	}{{"IPv4", netip.MustParseAddr("192.0.2.2")}, {"IPv6", netip.MustParseAddr("2001:db8::2")}} {
		t.Run(tt.name, func(t *testing.T) {
			speaker, other := newPair(t, tt.addr.Is6())
			if err := speaker.speaks(Link.Ask, tt.addr); err != nil {
				t.Fatal(err)
			}
			if !speaker.hears(Word{Addr: tt.addr, MAC: other.mac}) {
				t.Error("not heard")
			}
		})
	}
}

func FuzzNDP(f *testing.F) {
	f.Add(make([]byte, 100))
	frame := make([]byte, atICMP+32)
	frame[atNext], frame[atHopLimit], frame[atICMP], frame[atLength+1] = 58, 255, advertisement, 32
	f.Add(frame)
	f.Fuzz(func(_ *testing.T, b []byte) {
		(&ndpLink{heard: func(Word) {}}).take(b)
	})
}
