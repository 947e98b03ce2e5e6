// Package record holds the two things known of a pod on this node: Pod, what the
// agent decided and keeps on disk, and Observed, what the runtime shows. Both are
// plain values: package pod decides with them, package status tells of them.
package record
