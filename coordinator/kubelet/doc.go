// Package kubelet is the API server's side of its connections to kubelets: where
// a node's kubelet is, who the API server says that it is, and what a node must
// show for it to go on.
package kubelet
