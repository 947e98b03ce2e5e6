package cgroup

import (
	"errors"
	"fmt"
	"math"
	"sort"
	"strconv"
)

// Resources are the limits of one group. A nil or empty field is left as it
// is.
type Resources struct {
	CPUShares   *uint64 // v1 scale, 2..262144; converted to cpu.weight on v2
	CPUQuota    *int64  // microseconds per period; negative = no limit
	CPUPeriod   *uint64 // microseconds
	MemoryLimit *int64  // bytes; negative = no limit
	PidsLimit   *int64  // negative = no limit
	CpusetCpus  string
	CpusetMems  string
	Hugepages   map[string]uint64 // page size as in "2MB" -> bytes
	Unified     map[string]string // v2 files, written as they are
}

// Set applies res to an existing group.
func (r *Root) Set(path string, res Resources) error {
	if r.units != nil && isUnit(path) {
		if err := r.units.set(unitName(path), properties(res)); err != nil {
			return fmt.Errorf("limit cgroup %s: %w", path, err)
		}
	}
	return r.write(path, res)
}

// write sets the control files.
func (r *Root) write(path string, res Resources) error {
	var errs []error
	set := func(controller, file, value string) {
		dir := r.dir(controller, path)
		if dir == "" {
			errs = append(errs, fmt.Errorf("the host has no %s controller", controller))
			return
		}
		if err := write(dir, file, value); err != nil {
			errs = append(errs, err)
		}
	}
	r.setCPU(res, set)
	r.setMemory(path, res, set)
	if res.PidsLimit != nil {
		set("pids", "pids.max", maxOr(*res.PidsLimit))
	}
	if res.CpusetCpus != "" {
		set("cpuset", "cpuset.cpus", res.CpusetCpus)
	}
	if res.CpusetMems != "" {
		set("cpuset", "cpuset.mems", res.CpusetMems)
	}
	for _, size := range sortedKeys(res.Hugepages) {
		file := "hugetlb." + size + ".limit_in_bytes"
		if r.on2("hugetlb") {
			file = "hugetlb." + size + ".max"
		}
		set("hugetlb", file, strconv.FormatUint(res.Hugepages[size], 10))
	}
	if r.unified != "" {
		for _, file := range sortedKeys(res.Unified) {
			if err := write(r.unified+"/"+path, file, res.Unified[file]); err != nil {
				errs = append(errs, err)
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("limit cgroup %s: %w", path, err)
	}
	return nil
}

type setter func(controller, file, value string)

func (r *Root) setCPU(res Resources, set setter) {
	if r.on2("cpu") {
		if res.CPUShares != nil {
			set("cpu", "cpu.weight", strconv.FormatUint(Weight(*res.CPUShares), 10))
		}
		if res.CPUQuota != nil {
			set("cpu", "cpu.max", cpuMax(*res.CPUQuota, res.CPUPeriod))
		}
		return
	}
	if res.CPUShares != nil {
		set("cpu", "cpu.shares", strconv.FormatUint(*res.CPUShares, 10))
	}
	if res.CPUPeriod != nil && *res.CPUPeriod != 0 {
		set("cpu", "cpu.cfs_period_us", strconv.FormatUint(*res.CPUPeriod, 10))
	}
	if res.CPUQuota != nil && *res.CPUQuota != 0 {
		set("cpu", "cpu.cfs_quota_us", strconv.FormatInt(*res.CPUQuota, 10))
	}
}

func (r *Root) setMemory(_ string, res Resources, set setter) {
	if res.MemoryLimit == nil || *res.MemoryLimit == 0 {
		return
	}
	if r.on2("memory") {
		set("memory", "memory.max", maxOr(*res.MemoryLimit))
		return
	}
	set("memory", "memory.limit_in_bytes", strconv.FormatInt(max(*res.MemoryLimit, -1), 10))
}

// Weight converts v1 cpu.shares to v2 cpu.weight: a curve through the ends and
// the defaults of both, 1024 and 100, as runc 1.4, crun 1.24 and the kubelet
// have it (KEP-2254).
func Weight(shares uint64) uint64 {
	switch {
	case shares <= 2:
		return 1
	case shares >= 262144:
		return 10000
	}
	l := math.Log2(float64(shares))
	return uint64(math.Ceil(math.Pow(10, (l*l+125*l)/612-7.0/34)))
}

// defaultPeriod of the CPU quota in microseconds.
const defaultPeriod = 100000

func cpuMax(quota int64, period *uint64) string {
	p := uint64(defaultPeriod)
	if period != nil && *period != 0 {
		p = *period
	}
	return maxOr(quota) + " " + strconv.FormatUint(p, 10)
}

func maxOr(v int64) string {
	if v <= 0 {
		return "max"
	}
	return strconv.FormatInt(v, 10)
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
