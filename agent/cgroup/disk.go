package cgroup

import (
	"cmp"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/cgroups/v3/cgroup1"
	stats1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	"github.com/containerd/cgroups/v3/cgroup2"
)

// Disk is what a group reads and writes of one block device.
type Disk struct {
	Major, Minor            uint64
	ReadBytes, WrittenBytes uint64
	Reads, Writes           uint64
}

// Disks reads what the group has read and written, by device; none where the
// kernel does not tell.
func (r *Root) Disks(path string) []Disk {
	if r.on2("io") {
		return r.disks2(path)
	}
	cg, err := r.group1(path, cgroup1.Blkio)
	if err != nil {
		return nil
	}
	m, err := cg.Stat(func(error) error { return nil })
	if err != nil {
		return nil
	}
	return disks1(m.GetBlkio())
}

func (r *Root) disks2(path string) (out []Disk) {
	group, err := r.group2(path)
	if err != nil {
		return nil
	}
	if _, err := os.Stat(filepath.Join(r.unified, path, "io.stat")); err != nil {
		return nil
	}
	m, err := group.StatFiltered(cgroup2.StatIO)
	if err != nil {
		return nil
	}
	for _, e := range m.GetIo().GetUsage() {
		out = append(out, Disk{Major: e.Major, Minor: e.Minor, ReadBytes: e.Rbytes, WrittenBytes: e.Wbytes,
			Reads: e.Rios, Writes: e.Wios})
	}
	return sorted(out)
}

// disks1 sums up what v1 tells by operation.
func disks1(s *stats1.BlkIOStat) []Disk {
	type device struct{ major, minor uint64 }
	by := map[device]Disk{}
	add := func(entries []*stats1.BlkIOEntry, read, write func(*Disk) *uint64) {
		for _, e := range entries {
			key := device{e.Major, e.Minor}
			d := by[key]
			d.Major, d.Minor = e.Major, e.Minor
			switch e.Op {
			case "Read":
				*read(&d) += e.Value
			case "Write":
				*write(&d) += e.Value
			}
			by[key] = d
		}
	}
	add(s.GetIoServiceBytesRecursive(), func(d *Disk) *uint64 { return &d.ReadBytes },
		func(d *Disk) *uint64 { return &d.WrittenBytes })
	add(s.GetIoServicedRecursive(), func(d *Disk) *uint64 { return &d.Reads },
		func(d *Disk) *uint64 { return &d.Writes })
	return sorted(slices.Collect(maps.Values(by)))
}

func sorted(list []Disk) []Disk {
	slices.SortFunc(list, func(a, b Disk) int {
		return cmp.Or(cmp.Compare(a.Major, b.Major), cmp.Compare(a.Minor, b.Minor))
	})
	return list
}
