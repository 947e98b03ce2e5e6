// Package clusterdns keeps the Service kube-system/kube-dns, by which clients see
// the address of the cluster's DNS and nobody else is given it. It has no
// endpoints: the agents answer names on every node.
package clusterdns
