package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"unsafe"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// reserve takes room for a volume until it is there; done gives it back. A copy takes
// the room for what its source, a volume, may write anew besides.
func (d *Driver) reserve(bytes int64, source string) (done func(), err error) {
	d.promises.Lock()
	defer d.promises.Unlock()
	if rec, _, err := d.volumes.get(source); err == nil && rec.FSType == btrfsType {
		more, err := d.subvolumes.anew(d.volumes.path(source), rec.Size)
		if err != nil {
			return nil, internal(err, "look for room")
		}
		bytes += more
	}
	return d.take(bytes)
}

// reserveSnapshot takes room for what a volume writes anew when a snapshot keeps
// what it has now.
func (d *Driver) reserveSnapshot(volume string, rec record) (done func(), err error) {
	if rec.FSType == btrfsType {
		return d.reserve(0, volume)
	}
	d.promises.Lock()
	defer d.promises.Unlock()
	before, err := d.promised()
	if err != nil {
		return nil, internal(err, "look for room")
	}
	after, err := d.promised(volume)
	if err != nil {
		return nil, internal(err, "look for room")
	}
	return d.take(after - before)
}

// take is reserve where d.promises is held.
func (d *Driver) take(bytes int64) (done func(), err error) {
	room, err := d.room()
	if err != nil {
		return nil, internal(err, "look for room")
	}
	if bytes > 0 && bytes > room {
		return nil, status.Errorf(codes.ResourceExhausted,
			"no room for %d bytes: %d are free on the disk of %s and not promised to other volumes", bytes,
			max(0, room), d.volumes.dir)
	}
	d.reserved += bytes
	return func() {
		d.promises.Lock()
		defer d.promises.Unlock()
		d.reserved -= bytes
	}, nil
}

// room is what is free and promised to nobody, in bytes. d.promises is held.
func (d *Driver) room() (int64, error) {
	free, err := d.volumes.free()
	if err != nil {
		return 0, err
	}
	promised, err := d.promised()
	if err != nil {
		return 0, err
	}
	return free - promised - d.reserved, nil
}

// promised is what volumes may still take of the disk: what their images have no
// blocks for, and what they have to write elsewhere since others share the blocks.
// The volumes in kept count as if there were snapshots of them.
func (d *Driver) promised(kept ...string) (bytes int64, err error) {
	volumes, err := d.volumes.ids()
	if err != nil {
		return 0, err
	}
	sharing := len(kept) > 0
	for _, id := range volumes {
		owes, err := images{}.owes(d.volumes.path(id))
		if errors.Is(err, fs.ErrNotExist) {
			owes, err = d.subvolumes.owes(d.volumes.path(id))
		}
		if err != nil {
			continue // it is being deleted
		}
		bytes += owes
		if d.shares && !sharing {
			r, _, err := d.volumes.get(id)
			sharing = err == nil && r.Source != ""
		}
	}
	snapshots, err := d.snapshots.ids()
	if err != nil || !sharing && len(snapshots) == 0 {
		return bytes, err
	}
	var written, still []extent
	for _, id := range volumes {
		list, err := extents(d.volumes.image(id))
		if err != nil {
			return 0, err
		}
		written = append(written, list...)
		if slices.Contains(kept, id) {
			still = append(still, list...)
		}
	}
	for _, id := range snapshots {
		list, err := extents(d.snapshots.image(id))
		if err != nil {
			return 0, err
		}
		still = append(still, list...)
	}
	return bytes + anew(written, still), nil
}

// condition tells when others than the driver took the room that a volume was promised.
func (d *Driver) condition(id string, rec record) (*csipb.VolumeCondition, error) {
	free, err := d.volumes.free()
	if err != nil {
		return nil, err
	}
	if rec.FSType == btrfsType {
		if err := d.holds(id, rec.Size); err != nil {
			return &csipb.VolumeCondition{Abnormal: true, Message: err.Error()}, nil
		}
	}
	owes, err := d.backEnd(rec.FSType).owes(d.volumes.path(id))
	if err != nil {
		return nil, err
	}
	if lacks := owes - free; lacks > 0 {
		return &csipb.VolumeCondition{Abnormal: true, Message: fmt.Sprintf(
			"the disk of %s lacks %d bytes for all that the volume may hold: free them, or writes to it will fail",
			d.volumes.dir, lacks)}, nil
	}
	return &csipb.VolumeCondition{Message: "the disk has room for all that the volume may hold"}, nil
}

// extent is a part of the disk, in bytes.
type extent struct{ begin, end uint64 }

// anew is how much of the disk is taken when all that is shared is written: each
// volume then has blocks of its own, the last one those that no snapshot keeps.
func anew(volumes, snapshots []extent) (bytes int64) {
	type edge struct {
		at                uint64
		volumes, snapshot int64
	}
	edges := make([]edge, 0, 2*(len(volumes)+len(snapshots)))
	for _, e := range volumes {
		edges = append(edges, edge{e.begin, 1, 0}, edge{e.end, -1, 0})
	}
	for _, e := range snapshots {
		edges = append(edges, edge{e.begin, 0, 1}, edge{e.end, 0, -1})
	}
	slices.SortFunc(edges, func(a, b edge) int {
		switch {
		case a.at < b.at:
			return -1
		case a.at > b.at:
			return 1
		}
		return 0
	})
	var v, s int64
	for i, e := range edges {
		if i > 0 {
			copies := v
			if s == 0 {
				copies--
			}
			bytes += max(0, copies) * int64(e.at-edges[i-1].at)
		}
		v, s = v+e.volumes, s+e.snapshot
	}
	return bytes
}

// extents are the parts of the disk that a file has; none for a file that is gone.
func extents(file string) (out []extent, err error) {
	f, err := os.Open(file)
	if err != nil {
		if os.IsNotExist(err) {
			err = nil
		}
		return nil, err
	}
	defer f.Close()
	// struct fiemap of linux/fiemap.h, with room for some of its extents.
	const (
		fiemap  = 0xc020660b // FS_IOC_FIEMAP
		last    = 0x1
		unknown = 0x2 // not on the disk yet
	)
	var m struct {
		start, length                  uint64
		flags, mapped, count, reserved uint32
		extents                        [256]struct {
			logical, physical, length uint64
			_                         [2]uint64
			flags                     uint32
			_                         [3]uint32
		}
	}
	for {
		m.length, m.mapped, m.count = ^uint64(0)-m.start, 0, uint32(len(m.extents))
		if _, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fiemap, uintptr(unsafe.Pointer(&m))); e != 0 {
			return nil, &fs.PathError{Op: "fiemap", Path: file, Err: e}
		}
		for _, e := range m.extents[:min(int(m.mapped), len(m.extents))] {
			m.start = e.logical + e.length
			if e.flags&unknown == 0 {
				out = append(out, extent{e.physical, e.physical + e.length})
			}
			if e.flags&last != 0 {
				return out, nil
			}
		}
		if m.mapped == 0 {
			return out, nil
		}
	}
}
