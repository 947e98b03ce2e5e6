package dns

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-project/shoal/cni/nft/nfttest"
	"github.com/shoal-project/shoal/cni/nstest"
)

// The kernel limits who asks the addresses of now, whatever an earlier agent had.
func TestMeterFollowsItsAddresses(t *testing.T) {
	ns := ownNetwork(t)
	for _, list := range [][]string{{"10.96.0.10"}, {"10.96.0.10", "169.254.20.10", "fd00::10"}, {"10.96.0.11"}} {
		s := New(Config{Addrs: addrs(list...), Table: "asked"}, fixed{testTables()})
		for _, table := range s.meters() {
			var got string
			err := nstest.In(ns, func() (err error) {
				if err = s.meter(); err == nil {
					got, err = nfttest.Dump(table.String())
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(s.metered(table).String(), got); d != "" {
				t.Errorf("%v: (-described +kernel)\n%s", list, d)
			}
		}
	}
}
