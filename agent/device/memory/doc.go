// Package memory gives containers memory of NUMA nodes: the static policy of the kubelet's
// Memory Manager (KEP-1769). It is for pods of the class Guaranteed, for what their containers
// ask for of memory and of huge pages; cpuset.mems keeps them on the nodes. Others take memory
// wherever the kernel finds it.
//
//	a node's memory, huge pages apart
//	├── reserved   for the system and the agent (reservedMemory), never given away
//	├── given      to containers, by the records
//	└── free
//
// What does not fit on one node comes of several. Nodes that give together, to one container,
// do so for all: a container is on one node of a pair only if nobody is on both. Otherwise one
// that is on both could take what the other was given.
//
// Init containers run one after the other, so that a pod takes of a node what it has there at
// most at one time.
package memory
