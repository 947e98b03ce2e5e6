// Package kubelet is the API server's TLS side of its connections to kubelets:
// who it says that it is, and what a node must show for it to go on.
package kubelet
