// Package allocate gives Services their numbers: cluster IPs of the ready
// ServiceCIDRs, node ports of one range. It knows which of them a Service's spec
// asks for, takes them before the Service is written, and gives them back when
// the write fails or the Service is gone. What else a Service is, and when it is
// written, is the registry's.
//
//	POST, PUT, PATCH of a Service
//	     │ Begin
//	     ▼
//	family.go    what the client left out of an update; the families (KEP-563)
//	reserved.go  spec.externalIPs that are the cluster's own: refused
//	     │
//	     ├──────────────────────────────┐ both wait for the disk, so together
//	     ▼                              ▼
//	address.go  addressPools        port.go  nodePorts
//	     │ guesses what is free         │ changes one bitmap
//	     ▼                              ▼
//	book.go     storedAddresses     book.go  storedPorts
//	     an IPAddress object each       ranges/servicenodeports in the store,
//	     (KEP-1880)                     as upstream keeps it
//	     │                              │
//	     └──────────────┬───────────────┘
//	                    ▼
//	the Service is written ─┬─ done:   what it had and has no more is given back
//	                        └─ failed: what was taken is given back
//
// The books are the truth, shared by all coordinators; a pool (pool.go, pure) is
// a guess that one process makes so that a claim seldom fails. A crash between a
// claim and the Service's write leaves a number of nobody: an address is found
// by who asks for it next and by the controller of IPAddresses, a port when the
// range is full or somebody asks for it, both after orphaned has passed.
package allocate
