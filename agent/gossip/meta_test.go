package gossip

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
)

// testAuthority signs grants as a cluster's coordinator does.
type testAuthority struct {
	t     testing.TB
	key   *ecdsa.PrivateKey
	trust Trust
}

func newAuthority(t testing.TB) *testAuthority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true,
		BasicConstraintsValid: true,
		NotAfter:              time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &testAuthority{t, key, Trust{cert}}
}

// identity makes a key and its grant; change, if given, has the last word.
func (a *testAuthority) identity(name string, change ...func(*Grant)) (*Identity, []byte) {
	a.t.Helper()
	id, err := NewIdentity()
	if err != nil {
		a.t.Fatal(err)
	}
	return id, a.grant(name, id, change...)
}

func (a *testAuthority) grant(name string, id *Identity, change ...func(*Grant)) []byte {
	a.t.Helper()
	g := Grant{Role: RoleAgent, Key: id.PublicKey(), Issued: time.Now(), Expires: time.Now().Add(24 * 365 * time.Hour)}
	for _, f := range change {
		f(&g)
	}
	raw, err := g.Sign(name, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return raw
}

var (
	somewhere = netip.MustParseAddrPort("192.0.2.7:7946")
	dualStack = func(g *Grant) {
		g.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.3.0/24"), netip.MustParsePrefix("fd00:3::/64")}
		g.NodeIPs = []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7")}
	}
	fullMeta = Meta{Zone: strings.Repeat("z", 63), MAC: "\x02\x00\x00\x00\x00\x01", Leaving: true, Votes: true,
		Layers: true, Proxies: true, Tunnel: strings.Repeat("k", 32), Inner: strings.Repeat("i", 32), TunnelPort: 51820,
		Encrypts: true, Hidden: true,
		Announces: "192.0.2.0/24,2001:db8::/64"}
)

// TestStatementRoundTrip: the longest that a member says fits.
func TestStatementRoundTrip(t *testing.T) {
	a := newAuthority(t)
	id, grant := a.identity("m", dualStack)
	s := statement{Meta: fullMeta, grant: grant, serial: uint64(time.Now().UnixNano()), ceiling: 1<<32 - 1}
	b, err := s.encode("m", somewhere, id)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeStatement(b)
	if err != nil {
		t.Fatal(err)
	}
	got.signed, got.signature = nil, nil
	if !reflect.DeepEqual(got, s) {
		t.Errorf("got %+v, want %+v", got, s)
	}
	p, err := newBook("self", a.trust, quiet).admit("m", somewhere, appendField(nil, 0, nil))
	if p != nil || err == nil {
		t.Error("nothing was admitted as a member")
	}
	if p, err = newBook("self", a.trust, quiet).admit("m", somewhere, b); err != nil ||
		len(p.grant.PodCIDRs) != 2 || p.Role != RoleAgent {
		t.Errorf("got %+v, %v", p, err)
	}
}

// TestLongestCoordinator: a coordinator whose Node has the longest name that it tells fits.
func TestLongestCoordinator(t *testing.T) {
	a := newAuthority(t)
	id, grant := a.identity("c", func(g *Grant) { g.Role = RoleCoordinator })
	meta := Meta{Role: RoleCoordinator, API: "https://[2001:db8:1111:2222:3333:4444:5555:6666]:65535",
		Node: strings.Repeat("n", 128), Leaving: true, Votes: true, Layers: true, Proxies: true,
		Announces: "192.0.2.0/24,2001:db8::/64"}
	s := statement{Meta: meta, grant: grant, serial: 1<<64 - 1, ceiling: 1<<32 - 1}
	b, err := s.encode("c", somewhere, id)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := decodeStatement(b); err != nil || !reflect.DeepEqual(got.Meta, meta) {
		t.Errorf("got %+v, %v", got.Meta, err)
	}
}

// TestInnerOfHidden: members that are not hidden spend no room on the key of an inner tunnel.
func TestInnerOfHidden(t *testing.T) {
	m := fullMeta
	m.Hidden = false
	b, err := statement{Meta: m}.encode("m", somewhere, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeStatement(b)
	if err != nil || got.Tunnel != m.Tunnel || got.Inner != "" {
		t.Errorf("got %+v, %v", got.Meta, err)
	}
}

func TestStatementTooLong(t *testing.T) {
	if _, err := (statement{Meta: Meta{Zone: strings.Repeat("z", 600)}}).encode("m", somewhere,
		nil); err != errMetaTooLong {
		t.Errorf("got %v", err)
	}
}

// TestLies: what a member may not say of itself, or another of it.
func TestLies(t *testing.T) {
	cluster, other := newAuthority(t), newAuthority(t)
	id, grant := cluster.identity("m")
	encode := func(name string, addr netip.AddrPort, id *Identity, s statement) []byte {
		b, err := s.encode(name, addr, id)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	liar, liarGrant := cluster.identity("liar")
	stranger, strangerGrant := other.identity("m")
	late := func(d time.Duration) func(*Grant) {
		return func(g *Grant) { g.Expires = time.Now().Add(-d) }
	}
	expired, recent := cluster.grant("m", id, late(expiredGrace+time.Hour)), cluster.grant("m", id, late(time.Hour))
	wide := cluster.grant("liar", liar)
	wide[len(wide)-80] ^= 1
	for _, tt := range []struct {
		name string
		raw  []byte
		want error
	}{
		{"itself", encode("m", somewhere, id, statement{grant: grant, serial: 1}), nil},
		{"its certificate ended lately", encode("m", somewhere, id, statement{grant: recent, serial: 1}), nil},
		{"its certificate ended long ago", encode("m", somewhere, id, statement{grant: expired, serial: 1}),
			errGrantExpired},
		{"unsigned", encode("m", somewhere, nil, statement{grant: grant, serial: 1}), errUnsigned},
		{"without a grant", encode("m", somewhere, id, statement{serial: 1}), errGrantNone},
		{"another's name", encode("m", somewhere, liar, statement{grant: liarGrant, serial: 1}), errGrantForged},
		{"another's grant", encode("m", somewhere, liar, statement{grant: grant, serial: 1}), errUnsigned},
		{"another cluster's authority", encode("m", somewhere, stranger, statement{grant: strangerGrant, serial: 1}),
			errGrantForged},
		{"another address",
			encode("m", netip.MustParseAddrPort("192.0.2.66:7946"), id, statement{grant: grant, serial: 1}), errUnsigned},
		{"a changed grant", encode("m", somewhere, liar, statement{grant: wide, serial: 1}), nil},
	} {
		_, err := newBook("self", cluster.trust, quiet).admit("m", somewhere, tt.raw)
		if tt.name == "a changed grant" {
			if err == nil {
				t.Errorf("%s was believed", tt.name)
			}
		} else if !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
}

// TestOldWords: what a member said before counts no more.
func TestOldWords(t *testing.T) {
	a := newAuthority(t)
	id, grant := a.identity("m")
	b := newBook("self", a.trust, quiet)
	say := func(id *Identity, s statement) error {
		raw, err := s.encode("m", somewhere, id)
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.admit("m", somewhere, raw)
		return err
	}
	if err := errors.Join(say(id, statement{grant: grant, serial: 5}),
		say(id, statement{grant: grant, serial: 6, Meta: Meta{Zone: "z"}})); err != nil {
		t.Fatal(err)
	}
	if err := say(id, statement{grant: grant, serial: 5}); !errors.Is(err, errOld) {
		t.Errorf("replayed words: %v", err)
	}
	newer := func(g *Grant) { g.Issued = time.Now().Add(time.Minute) }
	again, newGrant := a.identity("m", newer)
	if err := say(again, statement{grant: newGrant, serial: 1}); err != nil {
		t.Errorf("a machine that was made anew: %v", err)
	}
	if err := say(id, statement{grant: grant, serial: 7}); !errors.Is(err, errOld) {
		t.Errorf("the machine before it: %v", err)
	}
	if p := b.peer("m"); p.id != again.id {
		t.Error("the older key counts")
	}
}

func FuzzStatement(f *testing.F) {
	a := newAuthority(f)
	id, grant := a.identity("m", dualStack)
	b, err := statement{Meta: fullMeta, grant: grant, serial: 1, ceiling: 257}.encode("m", somewhere, id)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte{metaVersion, tagGrant, 3, 1, 2, 3})
	f.Fuzz(func(t *testing.T, raw []byte) {
		if p, err := newBook("self", a.trust, quiet).admit("m", somewhere, raw); err == nil &&
			string(p.raw) != string(b) && string(p.signed) != string(b[:len(p.signed)]) {
			t.Errorf("%x was believed", raw)
		}
	})
}

func FuzzGrant(f *testing.F) {
	a := newAuthority(f)
	_, grant := a.identity("m", dualStack)
	f.Add(grant)
	f.Add([]byte{tagGrantPodCIDR, 3, 1, 2, 3})
	f.Fuzz(func(t *testing.T, raw []byte) {
		g, _, _, err := decodeGrant(raw)
		if err == nil && (len(g.PodCIDRs) > maxPodCIDRs || len(g.NodeIPs) > maxNodeIPs || len(g.Key) != 65) {
			t.Errorf("got %+v", g)
		}
	})
}
