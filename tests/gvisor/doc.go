// Package gvisor runs pods of a RuntimeClass in gVisor. `make gvisor` builds its runtime
// runsc, which is a hundred megabytes, and runs this and the tests of agent/runtime that
// need it.
package gvisor
