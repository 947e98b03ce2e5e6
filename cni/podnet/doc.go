// Package podnet is what a pod's network is told of the pod's sandbox, by whoever
// made the sandbox and to whichever network connects it. Everybody passes the same
// values on; they are read from other forms, and written in other forms, where
// Shoal ends only:
//
//	CRI  PodSandboxConfig ─> agent/sandbox ─┐            ┌─> cni ──────> kernel
//	                                        ├─ Sandbox ──┤
//	CNI  arguments, stdin ─> cni/shoal-cni ─┘            └─> libcni ───> a third party's plugins
//	                                             (agent/network chooses)
//
// The answer is the pod's addresses, the primary one first. Of these types only
// HostPort and Bandwidth are on the disk, in libcni's cache, as plugins read them: agent/sandbox
// keeps the CRI's message, and cni the ID and the interface as the owner of an
// address.
package podnet
