// Package logs knows the logs of containers as files: where they are, what their
// lines look like, how they are rotated and how they are read. Others write
// them: conmon, or the monitor of another container runtime.
//
//	/var/log/pods/                           podLogsDir
//	  NAMESPACE_POD_UID/                     PodDir
//	    CONTAINER/
//	      0.log                              Name: of its first run
//	      0.log.20260101-120000              rotated: what 0.log was until then
//	      1.log                              of its second run
//	/var/log/containers/                     containerLogsDir
//	  POD_NAMESPACE_CONTAINER-ID.log         Link: to the log of a run
//
// A line is "TIME STREAM TAG TEXT", the CRI's format: the time as RFC 3339 with
// nanoseconds, stdout or stderr, and F for a full line or P for a part of one
// whose rest follows.
//
// The Rotator renames a log that has become too large and has the monitor open
// a new one; then it removes the oldest. Who follows a log goes on with the new
// file when the name stands for another than the open one.
//
// Pods can mount the directory of all logs, and write there. So each path below
// it is walked without links (package beneath), and what is read has limits.
package logs
