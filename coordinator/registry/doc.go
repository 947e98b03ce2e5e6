// Package registry lists the kinds that the coordinator serves. A group's kinds
// are declared in the package of its name.
package registry
