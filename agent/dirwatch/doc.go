// Package dirwatch tells of what changes in directories, also where the kernel gives no
// more watches.
//
// All processes of one user share a number of inotify instances and of watches (inotify(7),
// fs.inotify.max_user_instances is 128 by default), and a container's root is that same
// user where its pod has no user namespace: one pod can use them all up, and each conmon
// has one on cgroup v2. A part of the agent that cannot do without would end the node.
//
//	the kernel tells --- none left ---> look again each 10 s --- some are free ---> the kernel tells
package dirwatch
