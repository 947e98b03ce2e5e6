package cpu

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-project/shoal/agent/device/topology"
)

// Options are how the static policy chooses CPUs.
type Options struct {
	// FullCores gives whole cores only: nobody else runs on the other thread of a core.
	FullCores bool
	// AcrossNodes spreads what does not fit on one NUMA node evenly over as few as can be;
	// otherwise one is filled before the next.
	AcrossNodes bool
	// AlignBySocket counts NUMA nodes of one socket as one.
	AlignBySocket bool
	// AcrossCores gives one thread of each core first, rather than all threads of one.
	AcrossCores bool
	// StrictReservation keeps containers without CPUs of their own off the reserved ones too.
	StrictReservation bool
	// UncoreCache gives CPUs that share a cache of the last level, if it can be.
	UncoreCache bool
}

// ParseOptions reads cpuManagerPolicyOptions.
func ParseOptions(values map[string]string) (o Options, err error) {
	names := map[string]*bool{
		"full-pcpus-only":                  &o.FullCores,
		"distribute-cpus-across-numa":      &o.AcrossNodes,
		"align-by-socket":                  &o.AlignBySocket,
		"distribute-cpus-across-cores":     &o.AcrossCores,
		"strict-cpu-reservation":           &o.StrictReservation,
		"prefer-align-cpus-by-uncorecache": &o.UncoreCache,
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(values)) {
		to, known := names[name]
		if !known {
			errs = append(errs, fmt.Errorf("%q is not an option: there are %s", name,
				strings.Join(slices.Sorted(maps.Keys(names)), ", ")))
			continue
		}
		if *to, err = strconv.ParseBool(values[name]); err != nil {
			errs = append(errs, fmt.Errorf("%s: %q is neither true nor false", name, values[name]))
		}
	}
	for _, pair := range [][2]string{
		{"full-pcpus-only", "distribute-cpus-across-cores"},
		{"distribute-cpus-across-numa", "distribute-cpus-across-cores"},
		{"prefer-align-cpus-by-uncorecache", "distribute-cpus-across-cores"},
		{"prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa"},
	} {
		if *names[pair[0]] && *names[pair[1]] {
			errs = append(errs, fmt.Errorf("%s and %s exclude each other", pair[0], pair[1]))
		}
	}
	return o, errors.Join(errs...)
}

// Check tells whether the options suit a machine and the policy of its topology.
func (o Options) Check(m *topology.Machine, p topology.Policy) error {
	switch {
	case !o.AlignBySocket:
	case p == topology.SingleNode:
		return fmt.Errorf("align-by-socket and topologyManagerPolicy %s exclude each other", p)
	case m.Sockets(m.NodeMask()) > len(m.Nodes):
		return errors.New("align-by-socket is for machines whose sockets have a NUMA node of their own at least")
	}
	return nil
}
