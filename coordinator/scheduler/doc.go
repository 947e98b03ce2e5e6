// Package scheduler finds a node for each pod: queue -> Place -> assume -> bind.
// Identical pods share the work on nodes that have not changed since the last one.
package scheduler
