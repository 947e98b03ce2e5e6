// Package provision makes, expands and deletes the volumes that this node keeps for
// claims: those of the storage driver that ships with Shoal. It does on each node
// what CSI's provisioner and resizer do once in a cluster for drivers of others.
//
//	claim:  scheduler selects this node ─> CreateVolume ─> PersistentVolume (bound by the coordinator)
//	                     ^                      │ no room
//	                     └── claim given back <─┘
//	volume: claim asks for more ─> ControllerExpandVolume ─> capacity, then NodeExpandVolume (package volume)
//	        Released, to be deleted ─> DeleteVolume ─> finalizer and PersistentVolume gone
//
// class:  of this driver ─> GetCapacity ─> CSIStorageCapacity, by which the scheduler chooses
//
// It watches the claims and volumes of this node alone (package locality), and works
// on what changes; only the free space of the disk is looked at each minute. All is
// safe to repeat: a volume has its name from its claim's UID, so an agent that was
// killed goes on where it was. What it had begun for a claim that is gone by then, it
// undoes: a record on the disk (Unfinished) is there before the driver is asked, and
// goes when the API has the volume.
package provision
