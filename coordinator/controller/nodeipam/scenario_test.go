package nodeipam_test

import (
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/coordinator/controller"
	"github.com/shoal-project/shoal/coordinator/controller/controllertest"
	"github.com/shoal-project/shoal/coordinator/controller/nodeipam"
	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.Check(m) }

func play(t *testing.T, dir string, told gossip.Ranges, ranges ...string) {
	t.Helper()
	controllertest.PlayDir(t, "testdata/"+dir, func(env controller.Env) (*controller.Loop, error) {
		var list []nodeipam.Range
		for _, r := range ranges {
			cidr, bits, _ := strings.Cut(r, " ")
			n, err := strconv.Atoi(bits)
			if err != nil {
				return nil, err
			}
			list = append(list, nodeipam.Range{Prefix: netip.MustParsePrefix(cidr), NodeBits: n})
		}
		return nodeipam.New(env, list, told)
	})
}

func TestOneRange(t *testing.T) { play(t, "one", gossip.Ranges{}, "10.244.0.0/23 24") }

// The second range is the smaller one.
func TestTwoRanges(t *testing.T) {
	play(t, "two", gossip.Ranges{}, "10.244.0.0/16 24", "fd00:0:0:10::/63 64")
}

// Nodes are told the ranges, also those that have their blocks.
func TestTold(t *testing.T) {
	play(t, "told", gossip.Ranges{Pods: "P", Services: "S"}, "10.244.0.0/16 24", "fd00:0:0:10::/63 64")
}

// A second range of a family is for who comes when the first is full.
func TestRangesOfOneFamily(t *testing.T) {
	play(t, "more", gossip.Ranges{}, "10.244.0.0/24 24", "fd00::/63 64", "10.250.0.0/23 24")
}
