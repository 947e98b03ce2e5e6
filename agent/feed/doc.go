// Package feed is the node's side of what coordinators tell by a stream of lines (agent/policyfeed,
// agent/gatewayfeed): a line has a bounded length, something is said each Beat, and a stream that
// ends, or falls silent, is opened again.
package feed
