// Package gated drops the fields of features that are off in Kubernetes v1.36: a
// write that sets one is taken without it, and an object that has it from an
// earlier time keeps it. One table (table.go) says which fields of which kinds
// those are; the registry asks it on every create and update.
package gated
