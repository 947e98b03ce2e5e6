// Package replicaset keeps as many pods as each ReplicaSet, and each
// ReplicationController, asks for: it adopts and releases by selector, creates
// in slow-start batches, deletes the least useful pods first and counts them in
// the status.
package replicaset
