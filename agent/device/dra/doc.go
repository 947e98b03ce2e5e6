// Package dra has drivers prepare the devices of ResourceClaims for the pods of this
// node (dynamic resource allocation, KEP-4381). The coordinator's scheduler allocates
// devices to a claim and reserves the claim for pods; what is left is the node's:
//
//	pod comes:  claim allocated and reserved for it? ─> record ─> NodePrepareResources of each driver
//	            ─> CDI names of the devices, kept in the record, given to containers that ask for them
//	pod goes:   last pod of the claim here ─> NodeUnprepareResources of each driver ─> record gone
//
// A claim's record says which drivers are to be asked before the first is, so that an
// agent that was killed between two calls finishes or undoes. Both calls may be
// repeated (the drivers' contract). After a reboot the drivers are asked again, by the
// record where no API is in reach.
//
// Drivers register by package plugins, in version v1 or v1beta1 of their interface;
// of several of one name, as in an update, the newest one is asked. Calls are bounded;
// a driver that is away or hangs holds up its own pods alone. Of a driver that has
// been away for half a minute the ResourceSlices of this node are deleted, so that no
// pod is sent here for its devices.
package dra
