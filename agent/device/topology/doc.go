// Package topology tells how the machine's processors and memory lie to each other, and
// chooses the NUMA nodes that a container's CPUs, memory and devices are to be near to:
// the kubelet's Topology Manager (KEP-693, KEP-3545).
//
//	/sys ─ Read ─> Machine: CPUs by core, cache, socket and node; nodes with memory and distances
//
//	pod ─ for each container, or for all together (scope):
//	      providers ─ Hints ─> merge ─> the nodes that suit all ─ policy ─> Allocate of each provider
//	      │ CPUs, memory, devices                              └─ not good enough: Rejection
//
// A provider tells for each resource that a container asks for which sets of nodes could give
// it, and which of these are as few nodes as can be (preferred). A set of nodes suits all
// resources when each could have it, or the rest of it. It is preferred when it is the same
// and preferred for each. Of several the preferred ones count more, then the fewest nodes.
//
//	policy            rejects
//	none              nothing; nothing is asked
//	best-effort       nothing
//	restricted        what is not preferred
//	single-numa-node  what is not on a single node
//
// What a container has already is not asked for again: after a restart of the agent, or with
// another policy, nothing moves and nobody is rejected that has its share.
package topology
