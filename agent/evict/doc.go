// Package evict says when the node is short of memory or disk, and which pod
// must go first then. It is pure but for Measure.
package evict
