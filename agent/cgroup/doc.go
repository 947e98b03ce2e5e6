// Package cgroup creates, limits, reads, kills and removes control groups by
// a path that is the same in every hierarchy, by the files or by systemd. It
// does not use containerd/cgroups because one host may be v1, v2, or hybrid
// with controllers on both sides, which that treats as v1 only.
package cgroup
