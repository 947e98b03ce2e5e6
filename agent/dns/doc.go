// Package dns is the node's DNS server for pods: it answers names of Services
// and pods from service.Tables (Kubernetes DNS specification 1.1.0) and hands
// everything else to the node's own resolvers, with a small cache.
package dns
