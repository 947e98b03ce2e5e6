package evict

import "github.com/shoal-project/shoal/agent/host"

// Signal is one measured quantity, in bytes or numbers.
type Signal struct{ Available, Capacity int64 }

// Measure reads the signals of the machine. Memory is given by the caller: the node's,
// and what is left of that of pods, if anybody knows.
func Measure(nodeDir, imageDir string, memory, pods Signal) map[string]Signal {
	out := map[string]Signal{MemoryAvailable: memory, AllocatableAvailable: pods}
	for name, dir := range map[string]string{"nodefs": nodeDir, "imagefs": imageDir} {
		space, err := host.Space(dir)
		if err != nil {
			continue
		}
		out[name+".available"] = Signal{int64(space.Available), int64(space.Bytes)}
		out[name+".inodesFree"] = Signal{int64(space.InodesFree), int64(space.Inodes)}
	}
	if t, err := host.ReadTasks(); err == nil {
		out[PIDAvailable] = tasks(t)
	}
	return out
}

// tasks is how many more processes and threads the kernel lets run, of how
// many at most.
func tasks(t host.Tasks) Signal {
	return Signal{Available: t.Limit() - t.Count, Capacity: t.Limit()}
}

// Keep returns what must be left of a resource, by its total, for a threshold not
// to be met: what is written with less left only has pods evicted.
func Keep(thresholds map[string]string, signal string) func(total uint64) uint64 {
	return func(total uint64) uint64 {
		keep, err := ParseAmount(thresholds[signal])
		if err != nil {
			return 0 // no threshold; one that cannot be read ends the agent's start
		}
		return uint64(keep.Of(int64(total)))
	}
}
