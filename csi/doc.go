// Package csi calls the storage drivers of others, by the Container Storage
// Interface (v1), and knows the names that Kubernetes gives to their volumes.
//
//	Drivers ─ those that registered on this node, by name ─> Client ─ one call, one connection ─> driver's socket
//
// A driver may be absent, slow, wrong or wedged. So each call has an end (Timeout),
// what it answers is bounded, and an error tells whether the driver may still be at
// work on it: Final is false then, and the volume is as uncertain as after a crash.
//
// A connection is made for each call, as upstream does: a driver that nobody needs
// costs nothing, and one that was restarted is found at once.
package csi
