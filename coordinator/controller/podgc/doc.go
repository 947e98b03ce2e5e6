// Package podgc deletes pods that nothing else will: those of nodes that are
// gone, unscheduled ones that are being deleted, those on nodes out of service,
// and the oldest finished ones when there are too many.
package podgc
