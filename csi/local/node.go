package local

import (
	"context"
	"errors"
	"io/fs"
	"os"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
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
	keeps, dir := d.backEnd(rec.FSType), d.volumes.path(name)
	v, err := keeps.view(dir)
	if err != nil {
		return err
	}
	if m, err := mounted(path); err != nil || m != nil {
		if err == nil && !v.is(m) {
			err = status.Errorf(codes.FailedPrecondition, "something else is mounted at %s", path)
		}
		return err
	}
	if err := os.MkdirAll(path, 0o750); err != nil {
		return err
	}
	return keeps.mount(ctx, dir, path, rec, how)
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
	rec, _, err := d.volumes.get(name)
	if err != nil {
		return nil, internal(err, "volume %s", name)
	}
	if err := d.publish(name, rec, r); err != nil {
		return nil, internal(err, "publish volume %s", name)
	}
	return &csipb.NodePublishVolumeResponse{}, nil
}

func (d *Driver) publish(name string, rec record, r *csipb.NodePublishVolumeRequest) error {
	path := r.GetTargetPath()
	if m, err := mounted(path); err != nil || m != nil {
		return err // published before
	}
	v, err := d.backEnd(rec.FSType).view(d.volumes.path(name))
	if err != nil {
		return err
	}
	block := r.GetVolumeCapability().GetBlock() != nil
	if !v.used || block && len(v.devices) == 0 {
		return status.Errorf(codes.FailedPrecondition, "volume %s is not staged", name)
	}
	mode := r.GetVolumeCapability().GetAccessMode().GetMode()
	if mode == csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER {
		other, err := shownAt(v, r.GetStagingTargetPath())
		if err != nil {
			return err
		}
		if other != "" {
			return status.Errorf(codes.FailedPrecondition, "volume %s has its single writer at %s", name, other)
		}
	}
	defer d.volumes.done("published")
	if block {
		if err := write(path, nil); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		d.volumes.done("file for the device made")
		return bind(v.devices[0], path, false)
	}
	staged, err := mounted(r.GetStagingTargetPath())
	if err != nil {
		return err
	}
	if staged == nil || !v.is(staged) {
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
	keeps := d.backEnd(rec.FSType)
	v, err := keeps.view(d.volumes.path(name))
	switch {
	case err != nil:
	case !v.used:
		err = status.Errorf(codes.FailedPrecondition, "volume %s is not staged", name)
	default:
		err = keeps.grow(ctx, v, rec, path)
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
	condition, err := d.condition(name, rec)
	if err != nil {
		return nil, internal(err, "volume %s", name)
	}
	if rec.FSType == "" {
		return &csipb.NodeGetVolumeStatsResponse{VolumeCondition: condition, Usage: []*csipb.VolumeUsage{
			{Unit: csipb.VolumeUsage_BYTES, Total: size}}}, nil
	}
	usage, err := d.backEnd(rec.FSType).usage(d.volumes.path(name), path)
	if err != nil {
		return nil, internal(err, "volume %s at %s", name, path)
	}
	return &csipb.NodeGetVolumeStatsResponse{VolumeCondition: condition, Usage: usage}, nil
}
