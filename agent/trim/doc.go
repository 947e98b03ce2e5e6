// Package trim gives memory back that only the start of a process, or a burst of
// work, needed: both daemons and the supervisor idle most of their life.
package trim
