package container

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/oci"
	"google.golang.org/protobuf/proto"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func cloneConfig(c *criv1.ContainerConfig) *criv1.ContainerConfig {
	out := proto.Clone(c).(*criv1.ContainerConfig)
	if out.Linux == nil {
		out.Linux = &criv1.LinuxContainerConfig{}
	}
	return out
}

// merge lays the set fields of change over base.
func merge(base, change *criv1.LinuxContainerResources) *criv1.LinuxContainerResources {
	out := &criv1.LinuxContainerResources{}
	if base != nil {
		out = proto.Clone(base).(*criv1.LinuxContainerResources)
	}
	proto.Merge(out, change)
	return out
}

// limits are the settings of a control group for r.
func limits(r *criv1.LinuxContainerResources) cgroup.Resources {
	out := cgroup.Resources{CpusetCpus: r.GetCpusetCpus(), CpusetMems: r.GetCpusetMems(), Unified: r.GetUnified()}
	if v := uint64(r.GetCpuShares()); v > 0 {
		out.CPUShares = &v
	}
	if v := uint64(r.GetCpuPeriod()); v > 0 {
		out.CPUPeriod = &v
	}
	if v := r.GetCpuQuota(); v != 0 {
		out.CPUQuota = &v
	}
	if v := r.GetMemoryLimitInBytes(); v != 0 {
		out.MemoryLimit = &v
	}
	return out
}

// weigh states the CPU weight of v2 groups: older runtimes convert shares by
// another curve than limits does.
func (m *Manager) weigh(r *specs.LinuxResources) {
	if !m.cfg.Host.CgroupV2 || r.CPU == nil || r.CPU.Shares == nil {
		return
	}
	unified := map[string]string{"cpu.weight": strconv.FormatUint(cgroup.Weight(*r.CPU.Shares), 10)}
	maps.Copy(unified, r.Unified)
	r.Unified = unified
}

// respec changes the limits in the specification of a container that has not
// been started.
func (m *Manager) respec(c *Container, r *criv1.LinuxContainerResources) error {
	file := filepath.Join(m.bundle(c.ID), "config.json")
	b, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("update container %q: %w", c.ID, err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(b, &spec); err != nil {
		return fmt.Errorf("update container %q: %w", c.ID, err)
	}
	res := oci.Resources(merge(c.Config.GetLinux().GetResources(), r), m.cfg.Host)
	res.Devices = spec.Linux.Resources.Devices
	m.weigh(res)
	spec.Linux.Resources = res
	if b, err = json.Marshal(spec); err != nil {
		return fmt.Errorf("update container %q: %w", c.ID, err)
	}
	return os.WriteFile(file, b, 0o600)
}
