// Package containerd runs the agent on a real containerd instead of its own
// runtime. `make test-containerd` builds containerd and runs it.
package containerd
