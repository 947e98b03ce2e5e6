// Package evict says when the node is short of memory or disk, and ends pods that take
// more local storage than they are limited to. Pressure of the node ends no pod.
package evict
