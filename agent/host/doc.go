// Package host tells of the machine as its kernel does: what it is (Facts), and
// what is used of it now: memory, CPU time, tasks, file systems, and how long
// work waited for them (PSI). It only reads; what follows from that is for
// others to say. Groups of processes are package cgroup's.
//
//	Look              facts         /proc, /sys, /etc, uname(2), netlink
//	MemoryAvailable   now           /proc/meminfo
//	ReadPages         now           /proc/vmstat
//	ReadReclaim       since boot    /proc/vmstat
//	CPUTime           since boot    /proc/stat
//	BootTime          boot          clock_gettime(2)
//	ReadTasks         now           /proc/loadavg, /proc/sys/kernel
//	Space             now           statfs(2)
//	Stall             of late       /proc/pressure, where the kernel has it
//	FollowKernelLog   since boot    /dev/kmsg, without what processes write there
//	ReadTask          now           /proc/PID
//	MountsOf          now           /proc/self/mountinfo, which WatchMounts waits for
//	Synchronized      now           adjtimex(2)
package host
