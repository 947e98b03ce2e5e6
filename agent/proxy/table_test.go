package proxy

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-project/shoal/cni/cidr"
	"github.com/shoal-project/shoal/cni/nft"
	"github.com/shoal-project/shoal/cni/nft/nfttest"
)

// The table of a family is made of its words, and of what the cluster has of the
// family alone.
func TestTableOfAFamily(t *testing.T) {
	cfg := &Config{
		ServiceCIDRs: cidr.Parse("10.96.0.0/16,fd00:96::/112"),
		ClusterCIDRs: cidr.Parse("fd00:244::/56,10.244.0.0/16"),
		DNS:          []netip.Addr{dnsAddr, netip.MustParseAddr("fd00:96::a")},
	}
	c, err := nft.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for f, others := range map[nft.Family]string{nft.V4: "fd00:", nft.V6: "10."} {
		table := newTable("family", f)
		want := table.base(cfg)
		if err := c.Reset(want); err != nil {
			t.Fatal(err)
		}
		defer c.Delete(table.Table)
		got, err := nfttest.Dump(table.Table.String())
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(nfttest.Listed(want.String()), got); d != "" {
			t.Errorf("%s: (-described +kernel)\n%s", f, d)
		}
		if !strings.Contains(got, "ct state invalid goto invalid") {
			t.Errorf("packets of no flow are forwarded:\n%s", got)
		}
		if strings.Contains(got, others) {
			t.Errorf("the table of %s has addresses of another family:\n%s", f, got)
		}
	}
}
