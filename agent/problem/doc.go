// Package problem tells what is wrong with the machine itself, as conditions and events
// of its Node: what nothing on the node can mend, and an administrator must know.
//
//	KernelDeadlock       a task waits in the kernel without an end (hung task), or a
//	                     processor is stuck (lockup, RCU stall)
//	ReadonlyFilesystem   the node cannot write where it must
//	ClockProblem         the clock is not the coordinator's, or is not kept right any more
//
// A condition is shown from the first time that it holds, and then stays, False when all
// is well again: of a machine that never was ill the Node says nothing. One of the same
// type that somebody else writes (node-problem-detector) stays theirs: Mine tells by the
// reason. Conditions taint nothing and end no pod.
//
// Besides, some messages of the kernel are events of the Node: an oops, errors of disks,
// file systems and memory, a kill for want of memory of the whole machine.
//
//	/dev/kmsg ─> classify ─┬─> events, each reason once a minute
//	                       ├─> tasks, lockups ──────────────┐
//	                       └─> look at the mounts again ────┼─> Conditions ─> Node
//	/proc/self/mountinfo (only while one is read-only) ─────┤
//	clock set ─> event; Date of the coordinator's answers ──┘
//
// A well machine costs nothing: the kernel tells of problems, and only how long one lasts
// is looked at by timers (watcher.go). What the kernel says holds names that processes
// and devices gave themselves; it is only shown, cut off and in printable ASCII.
package problem
