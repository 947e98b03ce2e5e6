package volume

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoal-project/shoal/tests/leak"
)

// TestMain lets the test be the programs of a node, too, that its tests start under
// these names.
func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case "multipath":
		fakeMultipath(os.Args[1:])
	case "mortal-agent":
		mortalAgent()
	default:
		leak.Check(m)
	}
}
