package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"k8s.io/utils/ptr"
)

// Resources are the limits of one group. A nil or empty field is left as it
// is.
type Resources struct {
	CPUShares   *uint64 // v1 scale, 2..262144; converted to cpu.weight on v2
	CPUQuota    *int64  // microseconds per period; negative = no limit
	CPUPeriod   *uint64 // microseconds
	MemoryLimit *int64  // bytes; negative = no limit
	MemoryMin   *int64  // bytes, v2: never reclaimed; counts as far as the parents have it
	MemoryLow   *int64  // bytes, v2: reclaimed after all that is not protected
	PidsLimit   *int64  // negative = no limit
	IOWeight    *uint64 // 1..1000, 100 is the kernel's: of a disk's time, where the kernel shares it out
	CpusetCpus  string
	CpusetMems  string
	Unified     map[string]string // v2 files, written as they are
}

// Set applies res to an existing group.
func (r *Root) Set(path string, res Resources) error {
	if r.units != nil && isUnit(path) {
		if err := r.units.set(unitName(path), properties(res)); err != nil {
			return fmt.Errorf("limit cgroup %s: %w", path, err)
		}
	}
	if err := errors.Join(r.serves(res), r.limit1(path, res), r.limit2(path, res), r.weighIO(path, res)); err != nil {
		return fmt.Errorf("limit cgroup %s: %w", path, err)
	}
	return nil
}

// serves tells which controllers res needs and the host does not have.
func (r *Root) serves(res Resources) error {
	var errs []error
	for _, c := range res.controllers() {
		if !r.Controls(c) {
			errs = append(errs, fmt.Errorf("the host has no %s controller", c))
		}
	}
	return errors.Join(errs...)
}

func (r *Root) limit1(path string, res Resources) error {
	var names []cgroup1.Name
	for _, c := range res.controllers() {
		names = append(names, cgroup1.Name(c))
	}
	if len(names) == 0 || len(r.pick(names...)) == 0 {
		return nil
	}
	cg, err := r.group1(path, names...)
	if err != nil || len(cg.Subsystems()) < len(r.pick(names...)) {
		return errors.Join(fs.ErrNotExist, err)
	}
	return cg.Update(res.spec())
}

func (r *Root) limit2(path string, res Resources) error {
	if r.unified == "" {
		return nil
	}
	m, err := r.group2(path)
	if err != nil {
		return err
	}
	if err := m.Update(res.v2(r.on2)); err != nil {
		return err
	}
	for _, file := range slices.Sorted(maps.Keys(res.Unified)) {
		if err := write(filepath.Join(r.unified, path), file, res.Unified[file]); err != nil {
			return err
		}
	}
	return nil
}

// weighIO writes the files of the two that share out a disk's time by weight: the
// scheduler BFQ and io.cost (Linux Documentation/admin-guide/cgroup-v2.rst, IO; bfq-iosched).
// A host that has neither has no file, which is no error: its disks serve all alike.
func (r *Root) weighIO(path string, res Resources) error {
	if res.IOWeight == nil {
		return nil
	}
	var errs []error
	set := func(dir, file string) {
		if err := write(dir, file, strconv.FormatUint(*res.IOWeight, 10)); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	for _, h := range r.pick(cgroup1.Blkio) {
		set(h.(hierarchy).Path(clean(path)), "blkio.bfq.weight")
	}
	if r.on2("io") {
		set(filepath.Join(r.unified, path), "io.weight")
		set(filepath.Join(r.unified, path), "io.bfq.weight")
	}
	return errors.Join(errs...)
}

// controllers are those that the limits need.
func (res Resources) controllers() []string {
	var out []string
	need := func(controller string, needed bool) {
		if needed {
			out = append(out, controller)
		}
	}
	need("cpu", res.CPUShares != nil || res.CPUQuota != nil || res.CPUPeriod != nil)
	need("memory", nonzero(res.MemoryLimit) != nil || res.MemoryMin != nil || res.MemoryLow != nil)
	need("pids", res.PidsLimit != nil)
	need("cpuset", res.CpusetCpus != "" || res.CpusetMems != "")
	return out
}

// spec is what cgroup1 takes.
func (res Resources) spec() *specs.LinuxResources {
	out := &specs.LinuxResources{CPU: &specs.LinuxCPU{
		Shares: res.CPUShares,
		Quota:  nonzero(res.CPUQuota),
		Period: nonzero(res.CPUPeriod),
		Cpus:   res.CpusetCpus,
		Mems:   res.CpusetMems,
	}}
	if limit := nonzero(res.MemoryLimit); limit != nil {
		out.Memory = &specs.LinuxMemory{Limit: ptr.To(max(*limit, -1))}
	}
	if res.PidsLimit != nil {
		out.Pids = &specs.LinuxPids{Limit: res.PidsLimit}
	}
	return out
}

// v2 is what cgroup2 takes, of the controllers that it has. Its ToResources
// and NewCPUMax write "-1" where a limit is lifted, which the kernel refuses.
func (res Resources) v2(has func(controller string) bool) *cgroup2.Resources {
	out := &cgroup2.Resources{CPU: &cgroup2.CPU{}}
	if has("cpu") {
		if res.CPUShares != nil {
			out.CPU.Weight = ptr.To(Weight(*res.CPUShares))
		}
		if res.CPUQuota != nil {
			out.CPU.Max = cpuMax(*res.CPUQuota, res.CPUPeriod)
		}
	}
	if has("cpuset") {
		out.CPU.Cpus, out.CPU.Mems = res.CpusetCpus, res.CpusetMems
	}
	if has("memory") {
		m := cgroup2.Memory{Min: res.MemoryMin, Low: res.MemoryLow, Max: nonzero(res.MemoryLimit)}
		if m.Max != nil && *m.Max < 0 {
			m.Max = ptr.To[int64](math.MaxInt64) // the kernel's own "max"
		}
		if m != (cgroup2.Memory{}) {
			out.Memory = &m
		}
	}
	if res.PidsLimit != nil && has("pids") {
		out.Pids = &cgroup2.Pids{Max: *res.PidsLimit}
		if *res.PidsLimit <= 0 {
			out.Pids.Max = -1
		}
	}
	return out
}

// nonzero is nil for a pointer to zero, which means "as it is".
func nonzero[T int64 | uint64](v *T) *T {
	if v == nil || *v == 0 {
		return nil
	}
	return v
}

// Weight converts v1 cpu.shares to v2 cpu.weight: a curve through the ends and
// the defaults of both, 1024 and 100, as runc 1.4, crun 1.24 and the kubelet
// have it (KEP-2254).
func Weight(shares uint64) uint64 { return max(1, cgroup2.ConvertCPUSharesToCgroupV2Value(shares)) }

// defaultPeriod of the CPU quota in microseconds.
const defaultPeriod = 100000

// noLimit is what a control file takes and tells for "no limit".
const noLimit = "max"

func cpuMax(quota int64, period *uint64) cgroup2.CPUMax {
	limit := noLimit
	if quota > 0 {
		limit = strconv.FormatInt(quota, 10)
	}
	if nonzero(period) == nil {
		period = ptr.To[uint64](defaultPeriod)
	}
	return cgroup2.CPUMax(limit + " " + strconv.FormatUint(*period, 10))
}

// write sets one control file.
func write(dir, file, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteString(value); err != nil {
		return fmt.Errorf("%q: %w", value, err)
	}
	return nil
}
