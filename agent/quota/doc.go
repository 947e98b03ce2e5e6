// Package quota has directories take no more of the disk than they may, where their
// file system can limit that:
//
//	btrfs with simple quotas on      a directory is a subvolume
//	ext4, xfs mounted with prjquota  a directory has a project
//
// Such directories are emptyDir volumes with a size limit (package volume), and what a
// container with a limit writes (package container).
//
// It tells what they take without a look at their files. Whom it binds: project quotas
// a process that is in the node's own user namespace and owns the files can leave by
// the kernel's rules (it sets another project); what makes subvolumes outside of all
// groups is found by the next measurement (package csi/btrfs). So the limit is the
// kernel's, and what is measured is still compared.
package quota
