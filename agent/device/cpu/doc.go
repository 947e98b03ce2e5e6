// Package cpu gives containers CPUs for themselves: the static policy of the kubelet's CPU
// Manager (KEP-3570) with its options.
//
//	all CPUs that are online
//	├── reserved     for the system: never given away; in the shared pool, unless strictly reserved
//	├── exclusive    of one container each: pods of the class Guaranteed, for containers that ask
//	│                for whole CPUs
//	└── shared pool  of all other containers
//
// Which CPUs a container gets is decided from the largest part of the machine to the smallest:
// whole sockets and NUMA nodes, the node on which the rest fits with the least left over, whole
// uncore caches if asked for, whole cores, then threads of cores that are in use already.
//
// Who has a CPU is what the records say, nothing else: a record is on the disk before the other
// containers are taken off these CPUs, and that is done before a container of the pod starts. It
// goes when all containers of the pod have ended. Init containers run one after the other: what
// one has those after it use again.
//
//	pod comes:  CPUs for each container that asks ─> record ─> others off them ─> sandbox, containers
//	pod goes:   its record is deleted ─> others on them
//
// Others are moved by their cpuset, through the runtime (Pool). CFS quotas are not for containers
// with CPUs of their own, nor for their pods: they would only be throttled on them (upstream:
// DisableCPUQuotaWithExclusiveCPUs).
package cpu
