// Package systemnamespace makes the namespaces that every cluster has again when
// somebody deletes one: kube-node-lease is not protected from deletion, and the
// agents write their Leases there.
package systemnamespace
