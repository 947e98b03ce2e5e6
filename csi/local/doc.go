// Package local is the storage driver that ships with Shoal: it keeps each volume
// on the node's own disk, with the volume's size as a hard limit. It speaks CSI like
// any other driver, so it runs in the agent as in a process of its own.
//
// A volume is a sparse file that a loop device shows as a disk (images.go), or, where it
// is asked for with the file system btrfs, a subvolume of the disk (subvolumes.go):
//
//	DIRECTORY/volumes/ID/            one volume
//	    volume.json                  its name, its file system
//	    image                        what is on it; the file's length is the volume's size
//	    data                         or the subvolume; its record has the size
//	DIRECTORY/volumes/.making-ID/    being made: renamed to ID when it is whole
//	DIRECTORY/volumes/.deleting-ID/  being deleted
//	DIRECTORY/snapshots/ID/          a snapshot: snapshot.json, image or data
//
//	CreateVolume ─ image, mkfs ─> NodeStage ─ loop device, mount ─> NodePublish ─ bind mount ─> pod
//	             ─ subvolume ───>           ─ mount ─────────────>
//
// A rename is what makes a volume exist and what ends it, so that a driver that was
// killed leaves nothing half made: the next one removes .making- and .deleting-. Which
// loop devices and mounts there are, the kernel tells; nothing of it is kept. The end of
// a device binds everybody; a quota binds who writes files (package btrfs), so that
// subvolumes are for those who ask for them.
//
// Room is promised once: a volume is refused where the disk's free space, less what
// other volumes may still grow to, is too small for it. Snapshots and clones are
// there where the disk's file system shares blocks between files (XFS, btrfs).
package local
