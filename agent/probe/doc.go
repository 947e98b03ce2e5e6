// Package probe asks containers how they are: by a command, HTTP, TCP or gRPC.
// Every probe is a timer, no goroutine waits; a verdict is told only when its
// threshold is reached and it differs from the last. What fails in a container's
// first second is asked again soon, and not told.
package probe
