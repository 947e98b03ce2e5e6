package stats

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/agent/metrics"
)

// diskNames finds the names of block devices; those that were asked for are known.
type diskNames map[[2]uint64]string

// name is the device's, as in /dev; "" for one that has none: no disk is behind it.
func (n diskNames) name(d cgroup.Disk) string {
	key := [2]uint64{d.Major, d.Minor}
	name, known := n[key]
	if !known {
		target, err := os.Readlink("/sys/dev/block/" + number(d.Major) + ":" + number(d.Minor))
		if err == nil {
			name = "/dev/" + filepath.Base(target)
		}
		n[key] = name
	}
	return name
}

func number(n uint64) string { return strconv.FormatUint(n, 10) }

// withIdle is a group's use of disks with those that it did not use: a counter that
// begins at 0 shows its first growth, too.
func withIdle(used, all []cgroup.Disk) []cgroup.Disk {
	for _, d := range all {
		same := func(u cgroup.Disk) bool { return u.Major == d.Major && u.Minor == d.Minor }
		if !slices.ContainsFunc(used, same) {
			used = append(used, d)
		}
	}
	return used
}

// diskFamilies are of what groups read and write of disks, and of the machine's file systems.
func diskFamilies(names diskNames) []groupFamily {
	list := []groupFamily{
		{"container_fs_reads_bytes_total", metrics.Counter, 0, "Cumulative count of bytes read",
			transferred(names, func(d cgroup.Disk) uint64 { return d.ReadBytes },
				func(u host.DeviceUse) uint64 { return u.Read.Bytes() })},
		{"container_fs_reads_total", metrics.Counter, 0, "Cumulative count of reads completed",
			transferred(names, func(d cgroup.Disk) uint64 { return d.Reads },
				func(u host.DeviceUse) uint64 { return u.Read.Completed })},
		{"container_fs_writes_bytes_total", metrics.Counter, 0, "Cumulative count of bytes written",
			transferred(names, func(d cgroup.Disk) uint64 { return d.WrittenBytes },
				func(u host.DeviceUse) uint64 { return u.Written.Bytes() })},
		{"container_fs_writes_total", metrics.Counter, 0, "Cumulative count of writes completed",
			transferred(names, func(d cgroup.Disk) uint64 { return d.Writes },
				func(u host.DeviceUse) uint64 { return u.Written.Completed })},
		{"container_blkio_device_usage_total", metrics.Counter, 0, "Blkio Device bytes usage",
			func(g *Group, put put) {
				for _, d := range g.Disks {
					device := []string{"device", names.name(d), "major", number(d.Major), "minor", number(d.Minor), "operation"}
					put(float64(d.ReadBytes), append(device, "Read")...)
					put(float64(d.WrittenBytes), append(device, "Write")...)
				}
			}},
		{"container_fs_usage_bytes", metrics.Gauge, 0,
			"Number of bytes that are consumed by the container on this filesystem.",
			func(g *Group, put put) {
				if g.Container != "" && g.Known&KnowsLayer != 0 {
					put(float64(g.LayerBytes), "device", "")
				}
				ofFileSystems(func(f host.BlockFileSystem) float64 { return float64(f.Space.Used) })(g, put)
			}},
		{"container_pressure_io_waiting_seconds_total", metrics.Counter, KnowsAll,
			"Total time duration tasks in the container have waited due to IO congestion.",
			stalled(func(s *cgroup.Stats) *host.Pressure { return s.IOStall }, some)},
		{"container_pressure_io_stalled_seconds_total", metrics.Counter, KnowsAll,
			"Total time duration no tasks in the container could make progress due to IO congestion.",
			stalled(func(s *cgroup.Stats) *host.Pressure { return s.IOStall }, full)},
	}
	for _, f := range fileSystemFamilies {
		list = append(list, groupFamily{f.name, f.kind, 0, f.help, ofFileSystems(f.of)})
	}
	return list
}

// transferred is what a group did with its disks, or the whole machine with those of its
// file systems.
func transferred(
	names diskNames, group func(cgroup.Disk) uint64, machine func(host.DeviceUse) uint64,
) func(*Group, put) {
	return func(g *Group, put put) {
		for _, d := range g.Disks {
			if name := names.name(d); name != "" {
				put(float64(group(d)), "device", name)
			}
		}
		ofFileSystems(func(f host.BlockFileSystem) float64 { return float64(machine(f.Use)) })(g, put)
	}
}

func ofFileSystems(of func(host.BlockFileSystem) float64) func(*Group, put) {
	return func(g *Group, put put) {
		for _, f := range g.FileSystems {
			put(of(f), "device", "/dev/"+f.Device)
		}
	}
}

// fileSystemFamilies are of the machine alone: the kernel tells no group's part of them.
var fileSystemFamilies = []struct {
	name, kind, help string
	of               func(host.BlockFileSystem) float64
}{
	{"container_fs_limit_bytes", metrics.Gauge,
		"Number of bytes that can be consumed by the container on this filesystem.",
		func(f host.BlockFileSystem) float64 { return float64(f.Space.Bytes) }},
	{"container_fs_inodes_total", metrics.Gauge, "Number of Inodes",
		func(f host.BlockFileSystem) float64 { return float64(f.Space.Inodes) }},
	{"container_fs_inodes_free", metrics.Gauge, "Number of available Inodes",
		func(f host.BlockFileSystem) float64 { return float64(f.Space.InodesFree) }},
	{"container_fs_reads_merged_total", metrics.Counter, "Cumulative count of reads merged",
		func(f host.BlockFileSystem) float64 { return float64(f.Use.Read.Merged) }},
	{"container_fs_sector_reads_total", metrics.Counter, "Cumulative count of sector reads completed",
		func(f host.BlockFileSystem) float64 { return float64(f.Use.Read.Sectors) }},
	{"container_fs_read_seconds_total", metrics.Counter, "Cumulative count of seconds spent reading",
		func(f host.BlockFileSystem) float64 { return f.Use.Read.Time.Seconds() }},
	{"container_fs_writes_merged_total", metrics.Counter, "Cumulative count of writes merged",
		func(f host.BlockFileSystem) float64 { return float64(f.Use.Written.Merged) }},
	{"container_fs_sector_writes_total", metrics.Counter, "Cumulative count of sector writes completed",
		func(f host.BlockFileSystem) float64 { return float64(f.Use.Written.Sectors) }},
	{"container_fs_write_seconds_total", metrics.Counter, "Cumulative count of seconds spent writing",
		func(f host.BlockFileSystem) float64 { return f.Use.Written.Time.Seconds() }},
	{"container_fs_io_current", metrics.Gauge, "Number of I/Os currently in progress",
		func(f host.BlockFileSystem) float64 { return float64(f.Use.InFlight) }},
	{"container_fs_io_time_seconds_total", metrics.Counter, "Cumulative count of seconds spent doing I/Os",
		func(f host.BlockFileSystem) float64 { return f.Use.Busy.Seconds() }},
	{"container_fs_io_time_weighted_seconds_total", metrics.Counter, "Cumulative weighted I/O time in seconds",
		func(f host.BlockFileSystem) float64 { return f.Use.Weighted.Seconds() }},
}

// ReadMachine is what the whole machine uses, as cAdvisor tells it of the root of the
// control groups. Memory is that of /stats/summary.
func ReadMachine(memoryBytes int64) (Group, error) {
	g := Group{Path: "/", Known: KnowsCPU}
	var err error
	if g.FileSystems, err = host.BlockFileSystems(); err != nil {
		return g, err
	}
	if g.Use.CPUNanos, err = host.CPUTime(); err != nil {
		return g, err
	}
	if pages, err := host.ReadPages(); err == nil {
		g.Known |= KnowsMemory
		g.Use.Memory = uint64(max(0, memoryBytes-host.MemoryAvailable()))
		g.Use.WorkingSet, g.Use.RSS = g.Use.Memory, pages.Anonymous
		g.Use.PageFaults, g.Use.MajorPageFaults = pages.Faults, pages.MajorFaults
	}
	if _, used, ok := host.Swap(); ok {
		g.Known |= KnowsSwap
		g.Use.Swap = used
	}
	return g, nil
}
