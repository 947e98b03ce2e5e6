// Package nodettl annotates each Node with how long a kubelet may keep Secrets and
// ConfigMaps before it asks for them again (node.alpha.kubernetes.io/ttl, seconds):
// the more nodes there are, the longer. Shoal's agents watch what they use and do
// not need it; other kubelets, and programs that look, find what they expect.
package nodettl
