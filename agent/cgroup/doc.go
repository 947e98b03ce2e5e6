// Package cgroup creates, limits, reads, kills and removes control groups by
// a path that is the same in every hierarchy. It works on the files itself
// because one host may be v1, v2, or hybrid with controllers on both sides,
// which containerd/cgroups treats as v1 only.
package cgroup
