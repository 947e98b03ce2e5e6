package cni

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
)

// A list that changes while it is read is asked for again, but not for ever.
func TestDump(t *testing.T) {
	failed := errors.New("failed")
	for name, tt := range map[string]struct {
		interrupted int
		err         error
		asked       int
		want        error
	}{
		"whole":       {0, nil, 1, nil},
		"interrupted": {3, nil, 4, nil},
		"failed":      {1, failed, 2, failed},
		"never whole": {1000, nil, dumpTries, netlink.ErrDumpInterrupted},
	} {
		asked := 0
		list, err := dump(func() ([]int, error) {
			if asked++; asked <= tt.interrupted {
				return nil, netlink.ErrDumpInterrupted
			}
			return []int{1}, tt.err
		})
		if asked != tt.asked || !errors.Is(err, tt.want) || err == nil && len(list) != 1 {
			t.Errorf("%s: asked %d times, %v, %v", name, asked, list, err)
		}
	}
}
