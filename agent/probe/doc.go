// Package probe asks containers how they are: by a command, HTTP, TCP or gRPC.
// Every probe is a timer, no goroutine waits; a verdict is told only when its
// threshold is reached and it differs from the last.
package probe
