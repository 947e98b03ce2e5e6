// Package rotation has all coordinators of a cluster take over new keys while they run:
// the few that they have alike (the CA's, that of service account tokens, the store's,
// the gossip's). Each kind is a set of files.
//
//	operator ──► PUT Path: the files of the next step
//	               │  refused while a coordinator has not those of the step before
//	               ▼
//	  store   /shoal/keys/set/NAME       step, generation, hash of the files, signed by the
//	                                     cluster's CAs; the files, sealed to each coordinator
//	          /shoal/keys/member/NAME    a coordinator's public key and the hash of the files
//	                                     that it uses, signed by the CA
//	               ▲ watch
//	  each coordinator: opens what is sealed to it, uses it, writes its note
//
// Nothing in the store counts that no CA has signed which the reader believes.
//
// A step is one write, so that a power cut is before it or after it; whoever was down
// finds it when it is back. What is new is in the store for nobody but the coordinators
// that live or will be back: the key that opens it never leaves its machine.
package rotation
