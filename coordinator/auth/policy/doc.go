// Package policy holds upstream's default RBAC roles and bindings as data
// (policy.txt) and brings a cluster up to them at start, leaving alone what an
// administrator has marked or added.
package policy
