// Package upgrade changes the programs of one machine for those of another package,
// and goes back by itself when the machine does not get well with them.
//
//	Check      the package: its version, its architecture          version.go, package.go
//	Prepare    the way back: the old package, the old programs     package.go
//	Run        stop, keep the store, install, start, watch;        run.go
//	           back to the old package, and to the old store
//	Record     what was begun, on the disk before it is done       record.go
//
// A power cut, or the end of the process that upgrades, ends in the old programs or
// in the new ones: the record names the step, and the unit of this package undoes at
// the next start what was not finished. What the machine is made of (units, packages,
// files) is behind the interface Machine.
package upgrade
