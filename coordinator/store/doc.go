// Package store keeps the cluster's state: an etcd inside this process, spoken
// to without a socket, or etcd servers elsewhere. All API objects, custom ones
// too, go through the options it hands out; nothing else knows etcd.
//
//	the API server's storage of each kind
//	   │ Options, CustomOptions                                    options.go
//	   ▼
//	watch cache ◄── Follow: informers of this process             share.go
//	   ▼                                                           clock.go, stalled.go
//	what values are on disk: encrypted by the keys of a file       encrypt.go
//	   │          the same keys at all coordinators                witness.go
//	   │          where each kind's values are                     resources.go
//	   ▼
//	Store, one client                                              store.go
//	   ├── embedded etcd ── waits for its election                 embedded.go, gate.go, first.go
//	   │      │             started again when it gets others      running.go, front.go
//	   │      ├── refuses writes before the disk is full           space.go
//	   │      ├── a member of a cluster: the only one              member.go
//	   │      │                          one of several            members.go, peers.go
//	   │      └── copies of it, and back                           snapshot.go, restored.go
//	   └── outside etcd                                            outside.go
package store
