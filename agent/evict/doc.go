// Package evict says when the node is short of memory or disk. It is pure but
// for Measure. It ends no pod.
package evict
