// Package selinux gives containers and volumes the labels of SELinux, where the kernel
// has it and a policy is loaded. It acts for pods that ask for labels (seLinuxOptions)
// and for nobody else.
//
//	seLinuxOptions ─┬─> process label   of the container's processes
//	 + the policy's │
//	   defaults     └─> file label      of its root file system, by a mount option (context=)
//	                                    of its volumes, ─ by a mount option, where their driver can
//	                                                    └ file by file (Relabel), else
//
// A label is user:role:type:level. What the options leave out is the policy's default
// for containers (its file lxc_contexts, which most policies have, or the package
// container-selinux), and the level is then made of the pod's UID: so all containers of
// a pod share their files, before and after a restart of the agent.
package selinux
