// Package logs knows the logs of containers as files: where they are, what their
// lines look like, how they are rotated and how they are read. Others write
// them: conmon, or the monitor of another container runtime.
//
//	/var/log/pods/                           podLogsDir
//	  NAMESPACE_POD_UID/                     PodDir
//	    CONTAINER/
//	      0.log                              Name: of its first run
//	      0.log.20260101-120000.000000000    rotated: what 0.log was until then
//	      .0.held                            a second name of 0.log
//	      0.log.tmp                          what conmon begins it anew with: made before
//	                                         the disk is full
//	      1.log                              of its second run
//	/var/log/containers/                     containerLogsDir
//	  POD_NAMESPACE_CONTAINER-ID.log         Link: to the log of a run
//
// A line is "TIME STREAM TAG TEXT", the CRI's format: the time as RFC 3339 with
// nanoseconds, stdout or stderr, and F for a full line or P for a part of one
// whose rest follows.
//
// A log has a size that it never passes, and a few of what it was before:
//
//	conmon  writes 0.log │ the next line would be too much: a new file takes the name
//	Rotator              │   hears of it: .0.held is 0.log.TIME now, the oldest goes,
//	                     │   .0.held becomes a second name of the new 0.log
//
// So nothing is lost, as long as the Rotator is no slower than a whole log, and the disk
// is safe without it, too. Monitors of other runtimes write on for ever: of theirs the
// Rotator looks at the size, renames what is too large and has a new one opened. Who
// follows a log goes on with the one after it when the name stands for another file.
//
// Kept has logs stay for a while when their pod is gone, and bounds what all take.
//
// Pods can mount the directory of all logs, and write there. So each path below
// it is walked without links (package beneath), and what is read has limits.
package logs
