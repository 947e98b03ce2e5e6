// Package datadir takes a daemon's data directory for one process: a second one
// is refused by name, and one that was just killed is waited for, because the
// kernel gives back its lock and its ports only when its last write is done.
package datadir
