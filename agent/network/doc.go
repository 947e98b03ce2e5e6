// Package network connects pods: by a third-party network when the CNI
// configuration directory holds one, else by Shoal's own, called in process. Both
// are told of a sandbox in the same words (cni/podnet).
// It also keeps the routes to the other nodes' pods, which gossip tells of.
package network
