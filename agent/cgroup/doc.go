// Package cgroup creates, limits, reads, kills and removes control groups by a
// path that is the same in every hierarchy, on v1, hybrid and v2 hosts, by the
// files or by systemd. It is a layer over containerd/cgroups (cgroup1 and
// cgroup2 below), which has the first column; the second is what it lacks.
//
//	layout of the host  cgroups.Mode               which of v1's hierarchies are mounted: cgroup1 looks at
//	                                               directories
//	a group             cgroup1 with a hierarchy   a group on both sides of a hybrid host, where cgroups.Mode is
//	                    function, cgroup2 below    all that the library knows of cgroup2; whether a group exists
//	                    any mount point
//	creation            cgroup1.New, NewChild      each controller is passed down alone: cgroup2 passes all or none
//	limits              Update of both             limits that are lifted: of processes on v1, of CPU and memory
//	                                               on v2; control files by name; an error where the host lacks a
//	                                               controller
//	statistics,         cgroup1's Stat, cgroup2's  read here, file by file: the library reads all that there is,
//	OOM kills           StatFiltered: not used     with a goroutine for each controller, in three times the time
//	entering            AddProc of both            the group for monitors beside those of containers, on v2
//	killing             cgroup2's Kill, which      by process where v1 is alone; the wait for the end
//	                    works on hybrid hosts too
//	processes, removal  nothing                    see Pids and Delete
//	systemd             nothing                    cgroup2 puts every scope into system.slice, leaves a unit that
//	                                               exists with its old limits, cannot change them, fails to stop
//	                                               a unit that is gone, and connects anew for each call
//
// Tests named TestLibrary show each gap. Where one fails after an update of
// the library, what makes up for it here can go. Nothing freezes groups: OCI
// runtimes do.
package cgroup
