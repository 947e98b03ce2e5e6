package nodeipam_test

import (
	"net/netip"
	"testing"

	"github.com/shoal-project/shoal/coordinator/controller"
	"github.com/shoal-project/shoal/coordinator/controller/controllertest"
	"github.com/shoal-project/shoal/coordinator/controller/nodeipam"
	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.Check(m) }

func play(t *testing.T, dir string, ranges ...string) {
	t.Helper()
	controllertest.PlayDir(t, "testdata/"+dir, func(env controller.Env) (*controller.Loop, error) {
		var list []netip.Prefix
		for _, r := range ranges {
			list = append(list, netip.MustParsePrefix(r))
		}
		return nodeipam.New(env, list)
	})
}

func TestOneRange(t *testing.T) { play(t, "one", "10.244.0.0/23") }

// The second range is the smaller one.
func TestTwoRanges(t *testing.T) { play(t, "two", "10.244.0.0/16", "fd00:0:0:10::/63") }
