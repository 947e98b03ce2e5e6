// Package btrfs makes subvolumes of btrfs with a limited size, by the kernel's calls
// alone.
//
// The limit is of simple quotas (Linux 6.7): each subvolume that Limit has seen is in a
// group of its own (LEVEL/ID, where ID is the subvolume's), and a subvolume that is made
// within it is put into the same group by the kernel. What is written counts for the
// subvolume that it was written to first, until the last copy of it is gone.
//
// That binds everybody who writes files. It does not bind who makes a subvolume by the
// kernel's newer call and names its groups, none for instance: that needs no rights.
// Adopt finds such subvolumes and puts them into the group.
//
// No path within a subvolume is ever walked: what a container made there is found by
// numbers in the file system's own trees.
package btrfs
