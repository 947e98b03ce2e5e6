// Package attachdetach has storage drivers attach volumes to the nodes whose pods
// use them, and detach those that no pod uses any more. A driver's own attacher does
// it; what it is to do is a VolumeAttachment, and how far it came is in its status. Node.status.volumesAttached
// tells the agent which volumes it may use, Node.status.volumesInUse is what the
// agent tells that it may have mounted:
//
//	       a pod of the node uses it,                  the attacher
//	       nobody else has it                          says attached
//	nothing ───────────> VolumeAttachment ───────────────────────────> in volumesAttached
//	   ▲                        │   not in volumesInUse; the node is out of         │
//	   │                        │   service; or it was not ready for 6 minutes      │
//	   └─ the attacher ── deleted <──── out of volumesAttached <────────────────────┘
//	      has detached it               and still not in volumesInUse
//
// Disks of storage networks (iscsi, fc) have no attacher and no VolumeAttachment: they go
// from node to node by volumesAttached alone (disks.go).
//
// A volume that may be written at one node at a time goes to the next when its
// VolumeAttachment is gone. All is read from the API: a coordinator that takes over
// knows no less, but for how long a node has kept a volume that it should not.
package attachdetach
