// Package snapshots keeps copies of the embedded store in a directory: by a schedule,
// of which some are kept, and when an operator asks. Each is a file of etcd's own form
// (etcdutl reads it), and beside it, where there is a passphrase, the cluster's keys
// under it: without them nobody reads the Secrets in the store.
//
//	DIR/scheduled-20261125T034000Z.db      the store, and its SHA-256
//	DIR/scheduled-20261125T034000Z.keys    members.Locked, in JSON
//	DIR/manual-20261125T040000Z.db         kept until somebody deletes it
//
// Each coordinator keeps its own, on its own disk. What the schedule takes may be copied
// to a bucket (s3.go), which all of them share: the first whose turn comes copies its.
package snapshots
