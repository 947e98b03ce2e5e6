// Command shoal-coordinator holds what a cluster must agree on: the API on its
// store, and, while it leads, the scheduler and the controllers. main.go reads
// the configuration, wire.go builds every part in the order of dependence.
package main
