package gossip

import (
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
)

// inject sends a message of g's making to the member of that name.
func inject(t *testing.T, g *Group, name, addr string, kind byte, body any) {
	t.Helper()
	var b []byte
	if err := codec.NewEncoderBytes(&b, &codec.MsgpackHandle{}).Encode(body); err != nil {
		t.Fatal(err)
	}
	sealed, err := g.sealPacket(append([]byte{kind}, b...), name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.cfg.Transport.WriteTo(sealed, addr); err != nil {
		t.Fatal(err)
	}
}

func memberIn(g *Group, name string) Member {
	for _, m := range g.Members() {
		if m.Name == name {
			return m
		}
	}
	return Member{}
}

func wordsOf(g *Group) (raw []byte, ceiling uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.own.encoded, g.own.ceiling
}

var versions = []uint8{1, 5, 2, 0, 0, 0}

// TestLiar: a member with a certificate of its own takes over no name, no range
// and no address, replays nothing, and buries nobody.
func TestLiar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		defer f.close()
		a, b, liar := f.start(0), f.start(1), f.start(2)
		for _, g := range []*Group{a, b, liar} {
			f.wait("join", time.Minute, func() bool { return len(g.Members()) == 3 })
		}
		time.Sleep(time.Minute)
		before := memberIn(a, "m1")
		if len(before.PodCIDRs) != 1 || before.PodCIDRs[0].String() != "10.244.1.0/24" {
			t.Fatalf("m1 has %v", before.PodCIDRs)
		}
		oldWords, _ := wordsOf(b)
		if err := b.UpdateMeta(func(m *Meta) { m.Zone = "new" }); err != nil {
			t.Fatal(err)
		}
		f.wait("news of m1", 5*time.Second, func() bool { return memberIn(a, "m1").Zone == "new" })

		own, _ := wordsOf(liar)
		mine := memberIn(liar, "m2").Addr
		theirs := before.Addr
		words, _ := wordsOf(b)
		send := func(kind byte, body any) {
			inject(t, liar, "m0", "10.0.0.1:7946", kind, body)
			time.Sleep(2 * time.Second)
		}
		ip := func(p netip.AddrPort) []byte { return p.Addr().AsSlice() }
		send(msgAlive, aliveBody{Incarnation: 9, Node: "m1", Addr: ip(mine), Port: 7946, Meta: own, Vsn: versions})
		send(msgAlive, aliveBody{Incarnation: 9, Node: "m1", Addr: ip(mine), Port: 7946, Meta: words, Vsn: versions})
		send(msgAlive, aliveBody{Incarnation: 9, Node: "m1", Addr: ip(theirs), Port: 7946, Meta: oldWords, Vsn: versions})
		send(msgAlive,
			aliveBody{Incarnation: 9, Node: "m1", Addr: ip(theirs), Port: 7946, Meta: words,
				Vsn: []uint8{9, 9, 9, 9, 9, 9}})
		send(msgAlive,
			aliveBody{Incarnation: 1<<32 - 1, Node: "m1", Addr: ip(theirs), Port: 7946, Meta: words, Vsn: versions})
		send(msgDead, accusation{Incarnation: 1<<32 - 1, Node: "m1", From: "m2"})
		send(msgSuspect, accusation{Incarnation: 1<<32 - 1, Node: "m1", From: "m2"})
		send(msgAlive, aliveBody{Incarnation: 1, Node: "nobody", Addr: ip(mine), Port: 7946, Meta: own, Vsn: versions})
		after := memberIn(a, "m1")
		if after.State != StateAlive || after.Zone != "new" || after.Addr != theirs ||
			after.Since != before.Since || len(a.Members()) != 3 {
			t.Errorf("m0 believes %+v", after)
		}

		// What is below the ceiling is contradicted, over and over, and m1 is still heard.
		for range 5 {
			_, ceiling := wordsOf(b)
			send(msgDead, accusation{Incarnation: ceiling, Node: "m1", From: "m2"})
			f.wait("back", 15*time.Second,
				func() bool { return stateIn(a, "m1") == StateAlive && stateIn(b, "m0") == StateAlive })
		}
		if err := b.UpdateMeta(func(m *Meta) { m.Zone = "last" }); err != nil {
			t.Fatal(err)
		}
		f.wait("last news of m1", time.Minute, func() bool { return memberIn(a, "m1").Zone == "last" })
	})
}

// TestOnlyTheSharedKey: who has it, and no certificate of this cluster, is heard
// by nobody and hears nothing.
func TestOnlyTheSharedKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		defer f.close()
		a, b := f.start(0), f.start(1)
		f.wait("join", time.Minute, func() bool { return len(a.Members()) == 2 })
		rogue := newAuthority(t)
		id, grant := rogue.identity("m1")
		claims := f.start(2, func(c *Config) { c.Name, c.Trust, c.Identity, c.Grant = "m1", rogue.trust, id, grant })
		believes := f.start(3, func(c *Config) { c.Trust, c.Identity, c.Grant = nil, nil, nil })
		time.Sleep(2 * time.Minute)
		if len(a.Members()) != 2 || stateIn(a, "m1") != StateAlive ||
			memberIn(a, "m1").Addr.Addr().String() != "10.0.0.2" || stateIn(b, "m0") != StateAlive {
			t.Errorf("m0 believes %+v", a.Members())
		}
		if len(claims.Members()) != 1 || len(believes.Members()) != 1 {
			t.Errorf("the strangers learned %v and %v", claims.Members(), believes.Members())
		}
	})
}

// TestKeysRotate: three steps, and nobody is thought dead on the way; who
// missed them is.
func TestKeysRotate(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		defer f.close()
		oldKey, newKey := base64.StdEncoding.EncodeToString([]byte(testKey)),
			base64.StdEncoding.EncodeToString([]byte(strings.ToUpper(testKey)))
		path := func(i int) string { return filepath.Join(dir, fmt.Sprint(i)) }
		write := func(i int, keys ...string) {
			if err := os.WriteFile(path(i), []byte(strings.Join(keys, "\n")+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var all []*Group
		for i := range 4 {
			write(i, oldKey)
			all = append(all, f.start(i, func(c *Config) {
				keys, err := LoadKeyring(path(i))
				if err != nil {
					t.Fatal(err)
				}
				c.Keys = keys
			}))
		}
		for _, g := range all {
			f.wait("join", time.Minute, func() bool { return len(g.Members()) == 4 })
		}
		time.Sleep(time.Minute)
		since := memberIn(all[0], "m1").Since
		for _, keys := range [][]string{{oldKey, newKey}, {newKey, oldKey}, {newKey}} {
			for i := range 3 {
				write(i, keys...)
				time.Sleep(time.Second)
			}
			time.Sleep(time.Minute)
		}
		if m := memberIn(all[0], "m1"); m.State != StateAlive || m.Since != since {
			t.Errorf("m1 is %s since %s", m.State, m.Since)
		}
		if stateIn(all[0], "m3") != StateDead {
			t.Error("who has only the old key is still heard")
		}
		write(1, "no key")
		time.Sleep(time.Minute)
		if stateIn(all[0], "m1") != StateAlive {
			t.Error("a broken file ended the keys")
		}
	})
}

// TestCertificateIsRenewed: the new key counts once its grant is there, and
// nobody is thought dead.
func TestCertificateIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		defer f.close()
		var all []*Group
		for i := range 4 {
			all = append(all, f.start(i))
		}
		for _, g := range all {
			f.wait("join", time.Minute, func() bool { return len(g.Members()) == 4 })
		}
		time.Sleep(time.Minute)
		id, _ := f.ca.identity("m1")
		all[1].SetIdentity(id, f.ca.trust)
		time.Sleep(time.Minute)
		if err := all[1].SetGrant(f.ca.grant("m1", id, func(g *Grant) {
			g.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.77.0/24")}
		})); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		for time.Since(start) < time.Minute {
			time.Sleep(100 * time.Millisecond)
			for i, g := range all {
				if i != 1 && stateIn(g, "m1") == StateDead {
					t.Fatalf("m%d thinks m1 dead after %s", i, time.Since(start))
				}
			}
		}
		for i, g := range all {
			if p := g.book.peer("m1"); i != 1 && (p.id != id.id || memberIn(g, "m1").PodCIDRs[0].String() != "10.244.77.0/24") {
				t.Errorf("m%d has the old key", i)
			}
		}
	})
}

// TestStreamsAreBounded: who says nothing keeps no more than a few streams, and
// a pod none; members still meet.
func TestStreamsAreBounded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	a := newAuthority(t)
	start := func(name string, deny string, join ...string) *Group {
		id, grant := a.identity(name)
		cfg := Config{Name: name, BindAddr: "127.0.0.1", BindPort: -1, Trust: a.trust, Identity: id,
			Grant: grant, Join: join, Log: quiet}
		if deny != "" {
			cfg.Deny = []netip.Prefix{netip.MustParsePrefix(deny)}
		}
		g, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() { _ = g.Run(ctx) })
		return g
	}
	open := func(g *Group, n int) int {
		var all []net.Conn
		for range n {
			c, err := net.Dial("tcp", g.Addr())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			all = append(all, c)
		}
		var refused atomic.Int64
		var readers sync.WaitGroup
		for _, c := range all {
			_ = c.SetReadDeadline(time.Now().Add(requestTimeout / 3)) // before all are ended for their silence
			readers.Go(func() {
				if _, err := c.Read(make([]byte, 1)); err != nil && !os.IsTimeout(err) {
					refused.Add(1)
				}
			})
		}
		readers.Wait()
		return int(refused.Load())
	}
	one := start("one", "")
	if ended := open(one, maxStreamsSource+10); ended != 10 {
		t.Errorf("%d of %d streams were refused", ended, maxStreamsSource+10)
	}
	if ended := open(start("two", "127.0.0.0/8"), 3); ended != 3 {
		t.Errorf("%d of 3 streams of a pod were refused", ended)
	}
	changed := one.Changed()
	start("three", "", one.Addr())
	for deadline := time.After(30 * time.Second); stateIn(one, "three") != StateAlive; {
		select {
		case <-changed:
		case <-deadline:
			t.Fatal("members do not meet any more")
		}
	}
}

// ends tells when the other end of a stream ends it.
func ends(c net.Conn) <-chan time.Time {
	done := make(chan time.Time, 1)
	go func() {
		_, _ = c.Read(make([]byte, 1))
		done <- time.Now()
	}()
	return done
}

// TestStreamsBeforeAuthentication: a stream has ten seconds for all of its
// request, however it is said.
func TestStreamsBeforeAuthentication(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		defer f.close()
		f.start(0)
		stranger := f.net.Transport("stranger", "10.0.0.9")
		for name, words := range map[string]func(net.Conn){
			"silent":   func(net.Conn) {},
			"trickles": func(c net.Conn) { trickle(c, append([]byte{formShared, 3, 0}, make([]byte, 100)...)) },
		} {
			start := time.Now()
			c, err := stranger.DialTimeout("10.0.0.1:7946", time.Second)
			if err != nil {
				t.Fatal(err)
			}
			ended := ends(c)
			words(c)
			if took := (<-ended).Sub(start); took != requestTimeout {
				t.Errorf("%s: ended after %v, want %v", name, took, requestTimeout)
			}
			_ = c.Close()
		}
	})
}

// trickle writes a byte a second until the stream ends.
func trickle(c net.Conn, b []byte) {
	for i := range b {
		if _, err := c.Write(b[i : i+1]); err != nil {
			return
		}
		time.Sleep(time.Second)
	}
}

// TestStreamsInTotal: strangers together have half of the streams, members all.
func TestStreamsInTotal(t *testing.T) {
	g := &Group{log: quiet, members: map[string]Member{}}
	guard := &guard{g: g, open: map[net.Conn]source{}, sources: map[netip.Addr]int{}}
	enter := func(prefix string) (entered []net.Conn) {
		for i := range 3 * maxStreams / maxStreamsSource {
			for range maxStreamsSource {
				c := &streamFrom{addr: &net.TCPAddr{IP: net.ParseIP(fmt.Sprint(prefix, i)), Port: 1}}
				if guard.enter(c) {
					entered = append(entered, c)
				}
			}
		}
		return entered
	}
	for i := range 3 * maxStreams / maxStreamsSource {
		name := fmt.Sprint("m", i)
		g.members[name] = Member{Name: name, Addr: netip.MustParseAddrPort(fmt.Sprintf("192.0.2.%d:7946", i))}
	}
	strangers := enter("203.0.113.")
	members := enter("192.0.2.")
	if len(strangers) != maxStreamsStranger || len(members) != maxStreams-maxStreamsStranger {
		t.Errorf("%d streams of strangers, %d of members", len(strangers), len(members))
	}
	for _, c := range append(strangers, members...) {
		guard.leave(c)
		guard.leave(c) // a second end counts for nothing
	}
	if n := len(enter("192.0.2.")); n != maxStreams || guard.strangers != 0 || len(enter("203.0.113.")) != 0 {
		t.Errorf("%d streams of members alone, %d of strangers", n, guard.strangers)
	}
}

// streamFrom is a stream of which only the source is asked.
type streamFrom struct {
	net.Conn
	addr net.Addr
}

func (s *streamFrom) RemoteAddr() net.Addr { return s.addr }

// FuzzPacket: what a verified member sends, before memberlist sees it.
func FuzzPacket(f *testing.F) {
	a := newAuthority(f)
	g, words := alone(f, a)
	for _, m := range []struct {
		kind byte
		body any
	}{
		{msgAlive,
			aliveBody{Incarnation: 1, Node: "m", Addr: []byte{192, 0, 2, 7}, Port: 7946, Meta: words, Vsn: versions}},
		{msgDead, accusation{Incarnation: 1, Node: "self", From: "m"}},
	} {
		var b []byte
		if err := codec.NewEncoderBytes(&b, &codec.MsgpackHandle{}).Encode(m.body); err != nil {
			f.Fatal(err)
		}
		b = append([]byte{m.kind}, b...)
		f.Add(b)
		f.Add(append([]byte{msgCompound, 1, byte(len(b) >> 8), byte(len(b))}, b...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		g.filterPacket(b, "fuzz", func(part []byte) {
			if len(part) == 0 {
				t.Error("an empty message was passed on")
			}
		})
	})
}

// FuzzStream: an exchange of states.
func FuzzStream(f *testing.F) {
	a := newAuthority(f)
	g, words := alone(f, a)
	b, err := encodeStates(stateHead{Nodes: 1},
		[]stateBody{{Name: "m", Addr: []byte{192, 0, 2, 7}, Port: 7946, Meta: words, Incarnation: 1, Vsn: versions}})
	if err != nil {
		f.Fatal(err)
	}
	if again, err := g.filterStream(b, true); err != nil || string(again) != string(b) {
		f.Fatalf("%x became %x, %v", b, again, err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		if out, err := g.filterStream(b, true); err == nil && len(out) == 0 {
			t.Error("an empty message was passed on")
		}
	})
}

// FuzzHead: the first bytes of a stream.
func FuzzHead(f *testing.F) {
	a := newAuthority(f)
	g, _ := alone(f, a)
	f.Add(appendValue(appendValue(nil, []byte("m")), []byte("grant")))
	f.Fuzz(func(t *testing.T, b []byte) {
		if from, _, _, err := g.checkHead(b, nil); err == nil {
			t.Errorf("%x was believed to be of %s", b, from.name)
		}
	})
}

// FuzzKeys: the file of the shared keys.
func FuzzKeys(f *testing.F) {
	f.Add([]byte("# first\n" + base64.StdEncoding.EncodeToString([]byte(testKey)) + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		keys, err := parseKeys(b)
		if err != nil {
			return
		}
		if r, err := newRing(keys); err == nil && len(r.keys) != len(r.whole) {
			t.Errorf("%d keys, %d ciphers", len(r.keys), len(r.whole))
		}
	})
}

// alone is a group without a network, and the words of a member "m" at somewhere.
func alone(t testing.TB, a *testAuthority) (*Group, []byte) {
	id, grant := a.identity("m")
	words, err := statement{grant: grant, serial: 1, ceiling: 257}.encode("m", somewhere, id)
	if err != nil {
		t.Fatal(err)
	}
	self, _ := a.identity("self")
	g := &Group{cfg: Config{Name: "self"}, log: quiet, book: newBook("self", a.trust, quiet), members: map[string]Member{},
		restated: make(chan struct{}, 1)}
	g.own.id, g.own.ceiling = self, 257
	return g, words
}
