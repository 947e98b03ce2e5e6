// Package node authorizes what agents (and kubelets) ask for: objects that pods
// bound to the asking node refer to, and the node's own objects. The relation is
// an index of the pod informer, so there is no graph to keep in step.
package node
