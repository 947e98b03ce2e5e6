// Command shoal-pause is the process with ID 1 of a pod whose containers share
// a PID namespace, and the process that a pod's user namespace is made with.
// It does nothing but wait: the kernel reaps the pod's orphans for it.
//
// Containers of the pod see it, and one with the capability SYS_PTRACE can
// read and change it. So it is worth nothing: the agent starts it as root in
// the pod's namespaces and a mount namespace of its own, and before the first
// container can come it takes everything from itself:
//
//	root file system   an empty read-only tmpfs; the node's is unmounted
//	descriptors        all closed
//	user, group        65535, no further groups, as upstream's pause image
//	capabilities       none, in no set; no new privileges; not dumpable
//	system calls       those that the Go runtime needs to sleep (seccomp)
//	signals            SIGCHLD ignored, all others as the kernel treats them for
//	                   a namespace's first process: from inside none arrives
//
// The agent starts it from a sealed memory file, so that /proc/1/exe is no way
// to the program on the node's disk (CVE-2019-5736).
//
// With the agent it speaks over descriptor 3:
//
//	agent  its user ID                     decimal, ended by a newline
//	pause  "ready", or what went wrong
//	agent  one byte, once the process is recorded; no agent: pause ends
package main
