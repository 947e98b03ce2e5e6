// Package leader lets one coordinator at a time lead, by the Lease
// kube-system/shoal-coordinator.
package leader
