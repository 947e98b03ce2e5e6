package oci

import (
	"fmt"
	"strings"

	"github.com/containerd/containerd/v2/pkg/cap"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// knownCapabilities are all names that Linux has had.
var knownCapabilities = func() map[string]bool {
	m := map[string]bool{}
	for _, c := range cap.Known() {
		m[c] = true
	}
	return m
}()

// IDMappings converts a user namespace's mappings.
func IDMappings(list []*criv1.IDMapping) []specs.LinuxIDMapping {
	var out []specs.LinuxIDMapping
	for _, e := range list {
		out = append(out,
			specs.LinuxIDMapping{ContainerID: e.GetContainerId(), HostID: e.GetHostId(), Size: e.GetLength()})
	}
	return out
}

// Resources converts a container's limits. Zero values set nothing.
func Resources(r *criv1.LinuxContainerResources, host Host) *specs.LinuxResources {
	out := &specs.LinuxResources{Unified: r.GetUnified()}
	cpu := &specs.LinuxCPU{Cpus: r.GetCpusetCpus(), Mems: r.GetCpusetMems()}
	if v := uint64(r.GetCpuShares()); v > 0 {
		cpu.Shares = &v
	}
	if v := r.GetCpuQuota(); v > 0 { // a new group has none; crun cannot say so on v1
		cpu.Quota = &v
	}
	if v := uint64(r.GetCpuPeriod()); v > 0 {
		cpu.Period = &v
	}
	out.CPU = cpu
	if v := r.GetMemoryLimitInBytes(); v != 0 {
		out.Memory = &specs.LinuxMemory{Limit: &v}
		if s := r.GetMemorySwapLimitInBytes(); s != 0 {
			out.Memory.Swap = &s
		}
	}
	if host.Hugetlb {
		for _, l := range r.GetHugepageLimits() {
			out.HugepageLimits = append(out.HugepageLimits,
				specs.LinuxHugepageLimit{Pagesize: l.GetPageSize(), Limit: l.GetLimit()})
		}
	}
	return out
}

// setDevices gives the container its device nodes and the rules for them. A
// privileged container gets in.Devices, all of the host's.
func (in Input) setDevices(s *specs.Spec) error {
	if in.security().GetPrivileged() {
		s.Linux.Devices = in.Devices
		s.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
	} else {
		s.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
	}
	for _, d := range in.Config.GetDevices() {
		found, err := devicesBelow(d.GetHostPath(), d.GetContainerPath(), d.GetPermissions())
		if err != nil || len(found) == 0 {
			return fmt.Errorf("device %s: not a device node or a directory of them", d.GetHostPath())
		}
		for _, dev := range found {
			major, minor := dev.Major, dev.Minor
			s.Linux.Devices = append(s.Linux.Devices, dev)
			s.Linux.Resources.Devices = append(s.Linux.Resources.Devices, specs.LinuxDeviceCgroup{
				Allow: true, Type: dev.Type, Major: &major, Minor: &minor, Access: d.GetPermissions(),
			})
		}
	}
	return nil
}

// setMounts lists the default mounts, the sandbox's files and the volumes.
// A volume over a default mount takes its place.
func (in Input) setMounts(s *specs.Spec) error {
	taken := map[string]bool{}
	for _, m := range in.Mounts {
		taken[strings.TrimRight(m.Container, "/")] = true
	}
	add := func(m specs.Mount) {
		if !taken[m.Destination] {
			s.Mounts = append(s.Mounts, m)
		}
	}
	for _, m := range in.defaultMounts() {
		add(m)
	}
	mode := "rw"
	if in.security().GetReadonlyRootfs() {
		mode = "ro"
	}
	for _, f := range []struct{ from, to, mode string }{
		{in.Files.Hostname, "/etc/hostname", mode}, {in.Files.Hosts, "/etc/hosts", mode},
		{in.Files.ResolvConf, "/etc/resolv.conf", mode}, {in.Files.Shm, "/dev/shm", "rw"},
	} {
		if f.from != "" {
			add(specs.Mount{Destination: f.to, Type: "bind", Source: f.from,
				Options: []string{"rbind", "rprivate", f.mode}})
		}
	}
	for _, m := range in.Mounts {
		if err := m.check(); err != nil {
			return err
		}
		s.Mounts = append(s.Mounts, in.volume(m, s))
	}
	return nil
}

func (in Input) defaultMounts() []specs.Mount {
	sys := "ro"
	if in.security().GetPrivileged() {
		sys = "rw"
	}
	return []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts",
			Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", sys}},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup",
			Options: []string{"nosuid", "noexec", "nodev", "relatime", sys}},
	}
}

// check refuses what the CRI forbids for recursively read-only mounts.
func (m Mount) check() error {
	switch {
	case !m.RecursiveReadOnly:
		return nil
	case !m.ReadOnly:
		return fmt.Errorf("mount %s: recursive read-only needs a read-only mount: %w", m.Container,
			errdefs.ErrInvalidArgument)
	case m.Propagation != criv1.MountPropagation_PROPAGATION_PRIVATE:
		return fmt.Errorf("mount %s: recursive read-only needs private propagation, not %v: %w", m.Container,
			m.Propagation, errdefs.ErrInvalidArgument)
	}
	return nil
}

// volume is one bind mount with its propagation, which the root must have
// too for it to take effect.
func (in Input) volume(m Mount, s *specs.Spec) specs.Mount {
	propagation := "rprivate"
	switch m.Propagation {
	case criv1.MountPropagation_PROPAGATION_BIDIRECTIONAL:
		propagation = "rshared"
		s.Linux.RootfsPropagation = "rshared"
	case criv1.MountPropagation_PROPAGATION_HOST_TO_CONTAINER:
		propagation = "rslave"
		if s.Linux.RootfsPropagation != "rshared" {
			s.Linux.RootfsPropagation = "rslave"
		}
	}
	mode := "rw"
	switch {
	case m.RecursiveReadOnly:
		mode = "rro"
	case m.ReadOnly:
		mode = "ro"
	}
	return specs.Mount{Destination: m.Container, Type: "bind", Source: m.Host,
		Options: []string{"rbind", propagation, mode}}
}
