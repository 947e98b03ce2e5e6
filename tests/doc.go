// Package tests holds the rules of the house as Go tests: what may import what,
// and what a source file may not contain.
package tests
