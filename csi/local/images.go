package local

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// images is the back end of volumes that are files, which loop devices show: their
// size holds against everybody, on each file system.
type images struct {
	done func(step string)
}

// make implements backEnd.
func (images) make(ctx context.Context, dir string, r record, size int64) error {
	file := filepath.Join(dir, image)
	if err := format(ctx, file, size, r.FSType); err != nil {
		return err
	}
	return synced(file)
}

// copy implements backEnd. What files share the room that is promised allows for.
func (i images) copy(ctx context.Context, from, to string, size int64) (int64, error) {
	file := filepath.Join(to, image)
	err := still(ctx, filepath.Join(from, image), func(from string) error {
		err := copied(from, file)
		i.done("copied")
		return err
	})
	if err == nil && size > 0 {
		err = os.Truncate(file, size)
	}
	if err == nil {
		err = synced(file)
	}
	return 0, err
}

// owes implements backEnd: what the file has no blocks for.
func (images) owes(dir string) (int64, error) {
	file := filepath.Join(dir, image)
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		return 0, &fs.PathError{Op: "stat", Path: file, Err: err}
	}
	return max(0, st.Size-st.Blocks*512), nil
}

// view implements backEnd.
func (images) view(dir string) (*view, error) {
	devices, err := attached(filepath.Join(dir, image))
	if err != nil {
		return nil, err
	}
	return &view{devices: devices, used: len(devices) > 0, is: func(m *mountinfo.Info) bool {
		return m.FSType == "devtmpfs" && slices.Contains(devices, filepath.Join("/dev", m.Root)) || of(m, devices)
	}}, nil
}

// grow implements backEnd.
func (images) grow(ctx context.Context, v *view, r record, path string) error {
	err := grown(v.devices)
	if err == nil && r.FSType != "" {
		err = resize(ctx, r.FSType, v.devices[0], path)
	}
	return err
}

// usage implements backEnd.
func (images) usage(_, path string) ([]*csipb.VolumeUsage, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return nil, err
	}
	return []*csipb.VolumeUsage{
		{
			Unit: csipb.VolumeUsage_BYTES, Total: int64(st.Blocks) * st.Bsize,
			Available: int64(st.Bavail) * st.Bsize, Used: int64(st.Blocks-st.Bfree) * st.Bsize,
		},
		{
			Unit: csipb.VolumeUsage_INODES, Total: int64(st.Files), Available: int64(st.Ffree),
			Used: int64(st.Files - st.Ffree),
		},
	}, nil
}

// format makes an image with a file system on it, none where fsType is empty.
func format(ctx context.Context, file string, size int64, fsType string) error {
	if err := write(file, nil); err != nil {
		return err
	}
	if err := os.Truncate(file, size); err != nil {
		return err
	}
	// Blocks and sectors of 4 KiB: a loop device may have no smaller ones, where its
	// file shares blocks with another for instance.
	switch fsType {
	case "ext4":
		return run(ctx, "mkfs.ext4", "-F", "-q", "-b", "4096", "-m", "0", "-E", "nodiscard", file)
	case "xfs":
		return run(ctx, "mkfs.xfs", "-f", "-q", "-s", "size=4096", "-K", file)
	}
	return nil
}

// mount implements backEnd.
func (i images) mount(ctx context.Context, dir, path string, rec record,
	how *csipb.VolumeCapability_MountVolume) error {
	file := filepath.Join(dir, image)
	devices, err := attached(file)
	if err != nil {
		return err
	}
	device := ""
	if len(devices) > 0 {
		device = devices[0] // never two devices of one file
	} else {
		opened, err := attach(ctx, file, true)
		if err != nil {
			return err
		}
		defer opened.Close()
		i.done("attached")
		device = opened.Name()
	}
	if len(devices) == 0 && rec.FSType == "ext4" {
		if err := enlarge(ctx, device); err != nil {
			return err
		}
	}
	flags, data := parsed(how.GetMountFlags())
	if rec.FSType == "xfs" {
		// A clone, or what is made of a snapshot, has its source's UUID: mounted beside it,
		// XFS would refuse it.
		data = strings.Trim(data+",nouuid", ",")
	}
	if err := unix.Mount(device, path, rec.FSType, flags, data); err != nil {
		if errors.Is(err, unix.EINVAL) && len(how.GetMountFlags()) > 0 {
			return badOptions(rec.FSType, how)
		}
		return &os.PathError{Op: "mount", Path: path, Err: err}
	}
	i.done("staged")
	if rec.FSType == "xfs" && flags&unix.MS_RDONLY == 0 {
		// It grows while it is mounted only; where it has its size that is nothing.
		if err := resize(ctx, rec.FSType, device, path); err != nil {
			return errors.Join(err, unmount(path))
		}
	}
	return nil
}

func badOptions(fsType string, how *csipb.VolumeCapability_MountVolume) error {
	return status.Errorf(codes.InvalidArgument, "mount options %q are not those of %s", how.GetMountFlags(), fsType)
}

// enlarge has an ext4 that is not mounted fill its device, which was expanded, or
// holds a copy of something smaller.
func enlarge(ctx context.Context, device string) error {
	fills, err := fillsDevice(device)
	if err != nil || fills {
		return err
	}
	if err := run(ctx, "e2fsck", "-f", "-p", device); err != nil {
		return err
	}
	return run(ctx, "resize2fs", device)
}

// resize has a mounted file system fill its device.
func resize(ctx context.Context, fsType, device, path string) error {
	if fsType == "xfs" {
		return run(ctx, "xfs_growfs", "-d", path)
	}
	fills, err := fillsDevice(device)
	if err != nil || fills {
		return err
	}
	if err := run(ctx, "resize2fs", device); err != nil {
		// It is done without the capability when the volume is staged the next time.
		return status.Errorf(codes.FailedPrecondition,
			"ext4 grows while it is mounted with CAP_SYS_RESOURCE only: %v", err)
	}
	return nil
}

// fillsDevice tells whether an ext4 leaves less than one of its groups of blocks of
// its device.
func fillsDevice(device string) (bool, error) {
	f, err := os.Open(device)
	if err != nil {
		return false, err
	}
	defer f.Close()
	var super [1024]byte
	if _, err := f.ReadAt(super[:], 1024); err != nil {
		return false, err
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return false, err
	}
	// ext4(5)'s superblock: s_blocks_count_lo, s_log_block_size, s_blocks_count_hi.
	le := binary.LittleEndian
	blocks := uint64(le.Uint32(super[0x4:])) | uint64(le.Uint32(super[0x150:]))<<32
	block := uint64(1024) << min(le.Uint32(super[0x18:]), 6)
	return blocks*block+granularity > uint64(size), nil
}
