// Package cni is Shoal's own pod network: one bridge a node, addresses of each
// family from the node's pod CIDRs, plain routes to the other nodes, masquerading
// towards the rest of the world and host ports. A pod sends as itself and by the
// node only (sender.go). The agent calls it in process; shoal-cni is
// the same as a plugin binary for other container runtimes.
package cni
