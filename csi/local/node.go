package local

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// NodeGetCapabilities implements csipb.NodeServer.
func (d *Driver) NodeGetCapabilities(context.Context, *csipb.NodeGetCapabilitiesRequest) (
	*csipb.NodeGetCapabilitiesResponse, error) {
	out := &csipb.NodeGetCapabilitiesResponse{}
	for _, t := range []csipb.NodeServiceCapability_RPC_Type{
		csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csipb.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csipb.NodeServiceCapability_RPC_VOLUME_CONDITION,
		csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		out.Capabilities = append(out.Capabilities, &csipb.NodeServiceCapability{
			Type: &csipb.NodeServiceCapability_Rpc{Rpc: &csipb.NodeServiceCapability_RPC{Type: t}}})
	}
	return out, nil
}

// NodeGetInfo implements csipb.NodeServer.
func (d *Driver) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	return &csipb.NodeGetInfoResponse{
		NodeId:             d.node,
		AccessibleTopology: &csipb.Topology{Segments: map[string]string{TopologyKey: d.node}},
	}, nil
}

// begin checks what all calls for a volume on the node have, and has no other call
// for it until done.
func (d *Driver) begin(volume, path, field string) (done func(), err error) {
	switch {
	case volume == "":
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	case path == "":
		return nil, status.Errorf(codes.InvalidArgument, "%s is missing", field)
	}
	return d.busy.take(volume)
}

// NodeStageVolume implements csipb.NodeServer.
func (d *Driver) NodeStageVolume(ctx context.Context, r *csipb.NodeStageVolumeRequest) (
	*csipb.NodeStageVolumeResponse, error) {
	name, path := r.GetVolumeId(), r.GetStagingTargetPath()
	done, err := d.begin(name, path, "staging_target_path")
	if err != nil {
		return nil, err
	}
	defer done()
	if r.GetVolumeCapability() == nil {
		return nil, status.Error(codes.InvalidArgument, "volume_capability is missing")
	}
	if err := usable(r.GetVolumeCapability()); err != nil {
		return nil, err
	}
	rec, _, err := d.volumes.get(name)
	if err != nil {
		return nil, internal(err, "volume %s", name)
	}
	if r.GetVolumeCapability().GetBlock() != nil {
		err = d.stageDevice(ctx, name)
	} else {
		err = d.stageMount(ctx, name, path, rec, r.GetVolumeCapability().GetMount())
	}
	if err != nil {
		return nil, internal(err, "stage volume %s", name)
	}
	return &csipb.NodeStageVolumeResponse{}, nil
}

func (d *Driver) stageDevice(ctx context.Context, name string) error {
	file := d.volumes.image(name)
	devices, err := attached(file)
	if err != nil || len(devices) > 0 {
		return err
	}
	device, err := attach(ctx, file, false)
	if err != nil {
		return err
	}
	d.volumes.done("attached")
	return device.Close()
}

func (d *Driver) stageMount(ctx context.Context, name, path string, rec record,
	how *csipb.VolumeCapability_MountVolume) error {
	switch want := how.GetFsType(); {
	case rec.FSType == "":
		return status.Errorf(codes.InvalidArgument, "volume %s is a plain device", name)
	case want != "" && want != rec.FSType:
		return status.Errorf(codes.InvalidArgument, "volume %s has file system %s, not %s", name, rec.FSType, want)
	}
	file := d.volumes.image(name)
	devices, err := attached(file)
	if err != nil {
		return err
	}
	if m, err := mounted(path); err != nil || m != nil {
		if err == nil && !of(m, devices) {
			err = status.Errorf(codes.FailedPrecondition, "something else is mounted at %s", path)
		}
		return err
	}
	if err := os.MkdirAll(path, 0o750); err != nil {
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
		d.volumes.done("attached")
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
			return status.Errorf(codes.InvalidArgument, "mount options %q are not those of %s: %v", how.GetMountFlags(),
				rec.FSType, err)
		}
		return &os.PathError{Op: "mount", Path: path, Err: err}
	}
	d.volumes.done("staged")
	if rec.FSType == "xfs" && flags&unix.MS_RDONLY == 0 {
		// It grows while it is mounted only; where it has its size that is nothing.
		if err := resize(ctx, rec.FSType, device, path); err != nil {
			return errors.Join(err, unmount(path))
		}
	}
	return nil
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

// NodeUnstageVolume implements csipb.NodeServer.
func (d *Driver) NodeUnstageVolume(_ context.Context, r *csipb.NodeUnstageVolumeRequest) (
	*csipb.NodeUnstageVolumeResponse, error) {
	name, path := r.GetVolumeId(), r.GetStagingTargetPath()
	done, err := d.begin(name, path, "staging_target_path")
	if err != nil {
		return nil, err
	}
	defer done()
	err = unmount(path)
	d.volumes.done("unmounted")
	if rec, _, gone := d.volumes.get(name); err == nil && gone == nil && rec.FSType == "" {
		err = detach(d.volumes.image(name))
	}
	if err != nil {
		return nil, internal(err, "unstage volume %s", name)
	}
	return &csipb.NodeUnstageVolumeResponse{}, nil
}

// NodePublishVolume implements csipb.NodeServer.
func (d *Driver) NodePublishVolume(_ context.Context, r *csipb.NodePublishVolumeRequest) (
	*csipb.NodePublishVolumeResponse, error) {
	name, path := r.GetVolumeId(), r.GetTargetPath()
	done, err := d.begin(name, path, "target_path")
	if err != nil {
		return nil, err
	}
	defer done()
	switch {
	case r.GetVolumeCapability() == nil:
		return nil, status.Error(codes.InvalidArgument, "volume_capability is missing")
	case r.GetStagingTargetPath() == "":
		return nil, status.Error(codes.InvalidArgument, "staging_target_path is missing")
	case r.GetVolumeCapability().GetBlock() != nil && r.GetReadonly():
		return nil, status.Error(codes.InvalidArgument, "readonly: a device is shown for reading and writing")
	}
	if err := usable(r.GetVolumeCapability()); err != nil {
		return nil, err
	}
	if _, _, err := d.volumes.get(name); err != nil {
		return nil, internal(err, "volume %s", name)
	}
	if err := d.publish(name, r); err != nil {
		return nil, internal(err, "publish volume %s", name)
	}
	return &csipb.NodePublishVolumeResponse{}, nil
}

func (d *Driver) publish(name string, r *csipb.NodePublishVolumeRequest) error {
	path := r.GetTargetPath()
	if m, err := mounted(path); err != nil || m != nil {
		return err // published before
	}
	devices, err := attached(d.volumes.image(name))
	if err != nil {
		return err
	}
	if len(devices) == 0 {
		return status.Errorf(codes.FailedPrecondition, "volume %s is not staged", name)
	}
	mode := r.GetVolumeCapability().GetAccessMode().GetMode()
	if mode == csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER {
		other, err := shownAt(devices, r.GetStagingTargetPath())
		if err != nil {
			return err
		}
		if other != "" {
			return status.Errorf(codes.FailedPrecondition, "volume %s has its single writer at %s", name, other)
		}
	}
	defer d.volumes.done("published")
	if r.GetVolumeCapability().GetBlock() != nil {
		if err := write(path, nil); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		d.volumes.done("file for the device made")
		return bind(devices[0], path, false)
	}
	staged, err := mounted(r.GetStagingTargetPath())
	if err != nil {
		return err
	}
	if staged == nil || !of(staged, devices) {
		return status.Errorf(codes.FailedPrecondition, "volume %s is not staged at %s", name, r.GetStagingTargetPath())
	}
	if err := os.MkdirAll(path, 0o750); err != nil {
		return err
	}
	return bind(r.GetStagingTargetPath(), path, r.GetReadonly())
}

// NodeUnpublishVolume implements csipb.NodeServer.
func (d *Driver) NodeUnpublishVolume(_ context.Context, r *csipb.NodeUnpublishVolumeRequest) (
	*csipb.NodeUnpublishVolumeResponse, error) {
	name, path := r.GetVolumeId(), r.GetTargetPath()
	done, err := d.begin(name, path, "target_path")
	if err != nil {
		return nil, err
	}
	defer done()
	err = unmount(path)
	d.volumes.done("hidden")
	if err == nil {
		// An empty directory, or the file under a device: never what is on a volume.
		err = os.Remove(path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, internal(err, "unpublish volume %s", name)
	}
	return &csipb.NodeUnpublishVolumeResponse{}, nil
}

// NodeExpandVolume implements csipb.NodeServer.
func (d *Driver) NodeExpandVolume(ctx context.Context, r *csipb.NodeExpandVolumeRequest) (
	*csipb.NodeExpandVolumeResponse, error) {
	name, path := r.GetVolumeId(), r.GetVolumePath()
	done, err := d.begin(name, path, "volume_path")
	if err != nil {
		return nil, err
	}
	defer done()
	rec, size, err := d.volumes.get(name)
	if err != nil {
		return nil, internal(err, "volume %s", name)
	}
	if !within(size, &csipb.CapacityRange{RequiredBytes: r.GetCapacityRange().GetRequiredBytes()}) {
		return nil, status.Errorf(codes.OutOfRange, "volume %s has %d bytes: expand it first", name, size)
	}
	devices, err := attached(d.volumes.image(name))
	switch {
	case err != nil:
	case len(devices) == 0:
		err = status.Errorf(codes.FailedPrecondition, "volume %s is not staged", name)
	default:
		err = grown(devices)
	}
	if err == nil && rec.FSType != "" {
		err = resize(ctx, rec.FSType, devices[0], path)
	}
	if err != nil {
		return nil, internal(err, "expand volume %s", name)
	}
	return &csipb.NodeExpandVolumeResponse{CapacityBytes: size}, nil
}

// NodeGetVolumeStats implements csipb.NodeServer.
func (d *Driver) NodeGetVolumeStats(_ context.Context, r *csipb.NodeGetVolumeStatsRequest) (
	*csipb.NodeGetVolumeStatsResponse, error) {
	name, path := r.GetVolumeId(), r.GetVolumePath()
	switch {
	case name == "":
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	case path == "":
		return nil, status.Error(codes.InvalidArgument, "volume_path is missing")
	}
	rec, size, err := d.volumes.get(name)
	if err != nil {
		return nil, internal(err, "volume %s", name)
	}
	m, err := mounted(path)
	if err == nil && m == nil {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, internal(err, "volume %s at %s", name, path)
	}
	condition, err := d.condition(name)
	if err != nil {
		return nil, internal(err, "volume %s", name)
	}
	if rec.FSType == "" {
		return &csipb.NodeGetVolumeStatsResponse{VolumeCondition: condition, Usage: []*csipb.VolumeUsage{
			{Unit: csipb.VolumeUsage_BYTES, Total: size}}}, nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return nil, internal(err, "volume %s at %s", name, path)
	}
	return &csipb.NodeGetVolumeStatsResponse{VolumeCondition: condition, Usage: []*csipb.VolumeUsage{
		{
			Unit: csipb.VolumeUsage_BYTES, Total: int64(st.Blocks) * st.Bsize,
			Available: int64(st.Bavail) * st.Bsize, Used: int64(st.Blocks-st.Bfree) * st.Bsize,
		},
		{
			Unit: csipb.VolumeUsage_INODES, Total: int64(st.Files), Available: int64(st.Ffree),
			Used: int64(st.Files - st.Ffree),
		},
	}}, nil
}
