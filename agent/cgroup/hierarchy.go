package cgroup

import (
	"slices"

	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup1/stats"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// hierarchy is one of v1's, each with one controller (or a name, as systemd's
// own has).
type hierarchy interface {
	cgroup1.Subsystem
	Path(group string) string
}

// hierarchies finds those that a container is put into, by what is mounted
// below mount. cgroup1's own list takes a directory for a mounted hierarchy.
func hierarchies(mount string) []cgroup1.Subsystem {
	known := []hierarchy{
		cgroup1.NewCpu(mount), cgroup1.NewCpuacct(mount), cgroup1.NewCpuset(mount),
		cgroup1.NewMemory(mount), cgroup1.NewDevices(mount),
		cgroup1.NewFreezer(mount), cgroup1.NewBlkio(mount), pids{cgroup1.NewPids(mount)},
		cgroup1.NewNetCls(mount), cgroup1.NewNetPrio(mount), cgroup1.NewPerfEvent(mount), cgroup1.NewNamed(mount, "systemd"),
	}
	if h, err := cgroup1.NewHugetlb(mount); err == nil { // the kernel has huge pages
		known = append(known, h)
	}
	var out []cgroup1.Subsystem
	for _, h := range known {
		if isMountOf(h.Path("/"), unix.CGROUP_SUPER_MAGIC) {
			out = append(out, h)
		}
	}
	return out
}

func isMountOf(dir string, magic int64) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && int64(st.Type) == magic
}

// pick selects hierarchies of v1 by name; without a name, all.
func (r *Root) pick(names ...cgroup1.Name) []cgroup1.Subsystem {
	if len(names) == 0 {
		return r.v1
	}
	var out []cgroup1.Subsystem
	for _, s := range r.v1 {
		if slices.Contains(names, s.Name()) {
			out = append(out, s)
		}
	}
	return out
}

func (r *Root) hierarchy(names ...cgroup1.Name) cgroup1.Hierarchy {
	return func() ([]cgroup1.Subsystem, error) { return r.pick(names...), nil }
}

// everywhere has the group under the same path in every hierarchy.
func everywhere(path string) cgroup1.Path { return cgroup1.StaticPath(clean(path)) }

// controller is what those of cgroup1 have that limit and measure.
type controller interface {
	hierarchy
	Create(group string, res *specs.LinuxResources) error
	Update(group string, res *specs.LinuxResources) error
	Stat(group string, s *stats.Metrics) error
}

// pids also lifts a limit, which cgroup1's passes over.
type pids struct{ controller }

// Create makes the group and sets or lifts its limit.
func (p pids) Create(group string, res *specs.LinuxResources) error {
	if err := p.controller.Create(group, res); err != nil {
		return err
	}
	if res.Pids == nil || res.Pids.Limit == nil || *res.Pids.Limit > 0 {
		return nil
	}
	return write(p.Path(group), "pids.max", noLimit)
}

// Update sets or lifts the limit.
func (p pids) Update(group string, res *specs.LinuxResources) error { return p.Create(group, res) }
