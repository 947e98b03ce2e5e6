package cni

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// dumpTries is how often a list is asked for. Each time takes some microseconds, and
// pods come and go at a few a second.
const dumpTries = 100

// dump has a list from the kernel in one piece: one that changed while it was read may
// lack some (NLM_F_DUMP_INTR), and is asked for again.
func dump[T any](list func() ([]T, error)) ([]T, error) {
	for try := 1; ; try++ {
		out, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) || try == dumpTries {
			return out, err
		}
	}
}
