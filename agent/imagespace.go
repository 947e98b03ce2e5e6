package main

import "github.com/shoal-project/shoal/agent/evict"

// imagesKeepFree is what must be left of the image file system: an image that
// took more would only have pods evicted.
func (a *agent) imagesKeepFree(total uint64) uint64 {
	return a.evictionLimit("imagefs.available", total)
}

// imagesKeepInodes is the same for inodes: a layer can be all empty files.
func (a *agent) imagesKeepInodes(total uint64) uint64 {
	return a.evictionLimit("imagefs.inodesFree", total)
}

func (a *agent) evictionLimit(signal string, total uint64) uint64 {
	keep, err := evict.Limit(a.cfg.EvictionHard[signal], int64(total))
	if err != nil {
		return 0 // no threshold, or none that can be read: no condition follows from it either
	}
	return uint64(keep)
}
