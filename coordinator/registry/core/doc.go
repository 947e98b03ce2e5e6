// Package core declares the kinds of the core group (v1): pods, services,
// nodes, namespaces and what they refer to, one file a kind.
package core
