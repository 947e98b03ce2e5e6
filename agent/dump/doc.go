// Package dump packs what CRIU saw of a container into a checkpoint archive, KEP-2008, as
// containerd's CRI does, so that what reads those (checkpointctl, containerd's restore by
// image) reads it:
//
//	config.dump      who the container is: names, image, OCI runtime, times
//	spec.dump        its OCI runtime specification
//	status           what checkpointctl reads of containerd
//	status.dump      its status of the CRI
//	checkpoint/      CRIU's images of its processes
//	dump.log         what CRIU said
//	stats-dump       how long it took
//	rootfs-diff.tar  what changed in its root file system, a layer of an image: what was
//	                 deleted is a whiteout
//	deleted.files    the same names once more, as CRI-O and Podman have them
//
// The files of the container are read while it runs: their tree is walked beneath an opened
// directory, without links, and a file that shrinks meanwhile is filled up with zeros. The
// archive has all of the container's memory, whatever secrets are there.
package dump
