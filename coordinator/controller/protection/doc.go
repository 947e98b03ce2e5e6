// Package protection keeps claims that pods use, volumes that are bound and
// attribute classes that volumes have from being deleted, by finalizers
// (PV-12..PV-14).
package protection
