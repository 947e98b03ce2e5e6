// Package volume makes the volumes of pods on the host: directories, tmpfs
// mounts, projections of API objects that follow their changes. It knows
// volumes, never containers' states.
//
// A volume goes one way up with its pod and the same way down. Its record
// (Volume, kept by Records) is on the disk before its first effect, and goes
// after the last is undone:
//
//	volume of   resolve         record           Stage           Mount
//	a pod ───────────> source ─────────> recorded ─────> staged ─────> mounted ─┐ Mount again, if it
//	                                      │    ▲          │   ▲         │  ▲    │ follows what it shows
//	nothing, no record <──── Delete ──────┘    └─Unstage ─┘   └─Unmount─┘  └────┘
//
// resolve asks what is behind a claim; that is one place, claim.go. Stage is for
// all pods of the node that have a persistent volume, and Unstage for the last
// of them; the volumes of a pod alone are not staged, but disks are. A record does not tell
// how far its volume came: after a crash it may be anywhere, so that a driver
// does again what was done, and undoes what was not. Hence the next agent needs
// the records alone, no pod and no API, to undo all that was made (Restore,
// Release); after a reboot, Ensure makes again what is gone.
//
// The drivers are a table, table.go, in which each type is one line:
//
//	driver     volumes                                  lies at                          follows   Unmount
//	emptyDir   emptyDir, and those without a source     pods/UID/volumes, tmpfs if in    no        removes it
//	                                                    memory, limited where the disk
//	                                                    has quotas (quota.go)
//	hostPath   hostPath, also behind claims             where it says                    no        nothing
//	projected  secret, configMap, downwardAPI,          pods/UID/volumes, tmpfs but      yes       removes it
//	           projected                                for configMap
//	local      local, behind claims                     pods/UID/volumes                 no        unmounts it
//	nfs        nfs, also behind claims                  pods/UID/volumes                 no        unmounts it
//	iscsi, fc  disks of a network, also behind claims   pods/UID/volumes                 no        unmounts it
//	image      image                                    nowhere: the runtime mounts it   no        nothing
//	csi        csi, also behind claims                  below pods/UID/volumes           some      asks the driver
//	csiBlock   csi behind claims, as devices            below pods/UID/volumeDevices     no        asks the driver
//	localBlock local behind claims, as devices          where it says                    no        unlinks it
//	iscsiBlock iscsi behind claims, as devices          below pods/UID/volumeDevices     no        unlinks it
//	fcBlock    fc behind claims, as devices             below pods/UID/volumeDevices     no        unlinks it
//
// Disks of a storage network (disk.go) are made ready once for all pods of the node,
// also for volumes of a pod itself. What finds them keeps nothing but the record: iscsi
// (iscsi.go) knows its sessions by the name of its interface, fc (fc.go) the disks by
// the links of udev.
//
// Volumes of storage drivers (csi.go) that must be attached to the node, and disks of
// PersistentVolumes (disk.go), are in its
// status.volumesInUse from their record on, before anything else, and until that is
// deleted (attach.go): so nobody detaches what this node may have touched. Nothing
// is done with them before the Node says that they are attached.
//
// A hollow node has a table of its own, of one line (NewHollow).
//
// What a container could write is never followed: paths inside volumes go
// through agent/beneath, a directory is removed when nothing is mounted in it
// any more, and containers cannot write what shows objects of the API (FromAPI).
package volume
