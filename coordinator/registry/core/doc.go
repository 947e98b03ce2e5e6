// Package core declares the kinds of the core group (v1): pods, services,
// nodes, namespaces and what they refer to, one file a kind. What Services are
// given is in registry/allocate, what reaches into pods and nodes in
// registry/connect.
package core
