package cgroup

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/containerd/cgroups/v3/cgroup1"
)

// Disk is what a group reads and writes of one block device.
type Disk struct {
	Major, Minor            uint64
	ReadBytes, WrittenBytes uint64
	Reads, Writes           uint64
}

// Disks reads what the group and those below it have read and written, by device; none
// where the kernel does not tell.
func (r *Root) Disks(path string) []Disk {
	dir, on2 := r.dir1(path, cgroup1.Blkio), r.on2("io")
	if on2 {
		dir = r.dir2(path)
	}
	f, err := inside(dir)
	if err != nil {
		return nil
	}
	defer f.close()
	if on2 {
		return disks2(f.contents("io.stat"))
	}
	var disks disks
	disks.add1(f.contents("blkio.throttle.io_service_bytes_recursive"),
		func(d *Disk) *uint64 { return &d.ReadBytes }, func(d *Disk) *uint64 { return &d.WrittenBytes })
	disks.add1(f.contents("blkio.throttle.io_serviced_recursive"),
		func(d *Disk) *uint64 { return &d.Reads }, func(d *Disk) *uint64 { return &d.Writes })
	return disks.sorted()
}

type disks []Disk

// of is the disk of a "major:minor".
func (l *disks) of(device []byte) *Disk {
	major, minor, _ := bytes.Cut(device, []byte(":"))
	d := Disk{Major: number(major), Minor: number(minor)}
	i := slices.IndexFunc(*l, func(has Disk) bool { return has.Major == d.Major && has.Minor == d.Minor })
	if i < 0 {
		i, *l = len(*l), append(*l, d)
	}
	return &(*l)[i]
}

// add1 takes lines of "major:minor operation value", of which those that read and write
// make up all (cgroup-v1/blkio-controller).
func (l *disks) add1(text []byte, read, write func(*Disk) *uint64) {
	for line := range bytes.Lines(text) {
		device, rest, _ := bytes.Cut(line, []byte(" "))
		operation, value, _ := bytes.Cut(rest, []byte(" "))
		switch string(operation) {
		case "Read":
			*read(l.of(device)) += number(value)
		case "Write":
			*write(l.of(device)) += number(value)
		}
	}
}

// disks2 takes lines of "major:minor key=value key=value ..." (cgroup-v2, io.stat).
func disks2(text []byte) []Disk {
	var l disks
	for line := range bytes.Lines(text) {
		device, rest, ok := bytes.Cut(line, []byte(" "))
		if !ok {
			continue // a device that nothing was done with
		}
		d := l.of(device)
		for pair := range bytes.FieldsSeq(rest) {
			key, value, _ := bytes.Cut(pair, []byte("="))
			switch string(key) {
			case "rbytes":
				d.ReadBytes = number(value)
			case "wbytes":
				d.WrittenBytes = number(value)
			case "rios":
				d.Reads = number(value)
			case "wios":
				d.Writes = number(value)
			}
		}
	}
	return l.sorted()
}

func (l disks) sorted() []Disk {
	slices.SortFunc(l, func(a, b Disk) int {
		return cmp.Or(cmp.Compare(a.Major, b.Major), cmp.Compare(a.Minor, b.Minor))
	})
	return l
}
