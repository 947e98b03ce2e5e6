// Package network connects pods: by a third-party network when the CNI
// configuration directory holds one, else by Shoal's own, called in process. Both
// are told of a sandbox in the same words (cni/podnet).
// Either may take the other's place while pods run (follow.go): each sandbox's record
// tells which of them made it.
// A sandbox that is stopped stays connected for a moment, so that
// what other nodes still send to it is refused, not lost (hold.go).
// It also keeps the routes to the other nodes' pods, which gossip tells of.
package network
