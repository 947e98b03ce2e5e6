// Package legacytoken takes tokens out of use that nobody has used for a year: the
// Secrets that Kubernetes made for each ServiceAccount before v1.24 (KEP-2799).
// One is marked invalid first, and deleted a year later; until then who takes the
// mark off has it back.
//
//	in use --(a year unused)--> marked invalid --(a year more)--> deleted
//	  ^------(mark taken off)---------/
package legacytoken
