package gossip

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

var fullMeta = Meta{
	Role:     RoleAgent,
	PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.3.0/24"), netip.MustParsePrefix("fd00:3::/64")},
	NodeIPs:  []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7")},
	Zone:     "eu-1a", API: "https://192.0.2.7:6443", MAC: "\x02\x00\x00\x00\x00\x01", Leaving: true,
}

func TestMetaRoundTrip(t *testing.T) {
	for _, m := range []Meta{{}, {Role: RoleCoordinator}, fullMeta} {
		b, err := m.encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := decodeMeta(b)
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("got %+v (%v), want %+v", got, err, m)
		}
	}
}

func TestMetaSkipsUnknownFields(t *testing.T) {
	b, _ := fullMeta.encode()
	got, err := decodeMeta(appendField(b, 99, []byte("from the future")))
	if err != nil || !reflect.DeepEqual(got, fullMeta) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestMetaTooLong(t *testing.T) {
	if _, err := (Meta{Zone: strings.Repeat("z", 600)}).encode(); err != errMetaTooLong {
		t.Errorf("got %v", err)
	}
}

func FuzzMeta(f *testing.F) {
	b, _ := fullMeta.encode()
	f.Add(b)
	f.Add([]byte{metaVersion, tagPodCIDR, 3, 1, 2, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMeta(b)
		if err != nil {
			return
		}
		if len(b) > maxMeta {
			return
		}
		again, err := m.encode()
		if err != nil {
			return // a longer way to write the same may exceed the limit
		}
		if got, err := decodeMeta(again); err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%+v became %+v (%v)", m, got, err)
		}
	})
}
