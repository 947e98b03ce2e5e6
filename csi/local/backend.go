package local

import (
	"context"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
)

// backEnd is what the data of volumes is kept in: an image, or a subvolume. Directories
// are those of a volume or a snapshot. What makes something has it on disk.
type backEnd interface {
	// make makes what is in an empty volume of a size.
	make(ctx context.Context, dir string, r record, size int64) error
	// copy makes it of what another has at one moment; size is 0 for a snapshot.
	// What it shares counts for the volume it is of: charged is how much at most.
	copy(ctx context.Context, from, to string, size int64) (charged int64, err error)
	// owes is how much of the disk a volume may still take.
	owes(dir string) (int64, error)
	// view is where a volume is shown on this node.
	view(dir string) (*view, error)
	// mount shows it at a path, where nothing is mounted yet.
	mount(ctx context.Context, dir, path string, r record, how *csipb.VolumeCapability_MountVolume) error
	// grow has what is mounted at a path have the volume's size.
	grow(ctx context.Context, v *view, r record, path string) error
	// usage measures what is mounted at a path.
	usage(dir, path string) ([]*csipb.VolumeUsage, error)
}

// view is where the kernel shows a volume on this node. No more of it is kept.
type view struct {
	// devices are the loop devices of an image.
	devices []string
	// used: somebody has it.
	used bool
	// is tells whether a mount shows it.
	is func(m *mountinfo.Info) bool
}

// backEnd of volumes with a file system.
func (d *Driver) backEnd(fsType string) backEnd {
	if fsType == btrfsType {
		return d.subvolumes
	}
	return images{done: func(step string) { d.volumes.done(step) }}
}
