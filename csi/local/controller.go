package local

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Sizes of volumes, in bytes.
const (
	usualSize   = 1 << 30
	granularity = 1 << 20
)

// leastSize is that of a volume with a file system, or with none.
func leastSize(fsType string) int64 {
	if fsType == "xfs" {
		return 300 << 20 // mkfs.xfs makes no smaller one
	}
	return 16 << 20 // with less there is hardly room beside ext4's own
}

// ControllerGetCapabilities implements csipb.ControllerServer.
func (d *Driver) ControllerGetCapabilities(context.Context, *csipb.ControllerGetCapabilitiesRequest) (
	*csipb.ControllerGetCapabilitiesResponse, error) {
	can := []csipb.ControllerServiceCapability_RPC_Type{
		csipb.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csipb.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csipb.ControllerServiceCapability_RPC_GET_CAPACITY,
		csipb.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csipb.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	}
	if d.shares {
		can = append(can, csipb.ControllerServiceCapability_RPC_CLONE_VOLUME,
			csipb.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
			csipb.ControllerServiceCapability_RPC_LIST_SNAPSHOTS)
	}
	out := &csipb.ControllerGetCapabilitiesResponse{}
	for _, t := range can {
		out.Capabilities = append(out.Capabilities, &csipb.ControllerServiceCapability{
			Type: &csipb.ControllerServiceCapability_Rpc{Rpc: &csipb.ControllerServiceCapability_RPC{Type: t}}})
	}
	return out, nil
}

// CreateVolume implements csipb.ControllerServer.
func (d *Driver) CreateVolume(ctx context.Context, r *csipb.CreateVolumeRequest) (*csipb.CreateVolumeResponse, error) {
	if r.GetName() == "" {
		return nil, status.Error(codes.InvalidArgument, "name is missing")
	}
	fsType, err := d.supported(r.GetVolumeCapabilities())
	if err != nil {
		return nil, err
	}
	for name := range r.GetParameters() {
		return nil, status.Errorf(codes.InvalidArgument, "parameter %s is not known: the driver has none", name)
	}
	if !d.here(r.GetAccessibilityRequirements()) {
		return nil, status.Errorf(codes.ResourceExhausted, "volumes are made on node %s alone", d.node)
	}
	name := id(r.GetName())
	done, err := d.busy.take(name)
	if err != nil {
		return nil, err
	}
	defer done()
	size, err := sizeOf(r.GetCapacityRange(), leastSize(fsType))
	if err != nil {
		return nil, err
	}
	from, err := d.source(r.GetVolumeContentSource(), &size, r.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	has, bytes, err := d.volumes.get(name)
	switch {
	case err == nil && (has.Name != r.GetName() || has.Source != from.of || has.FSType != fsType && fsType != ""):
		return nil, status.Errorf(codes.AlreadyExists, "volume %s exists, and is another", name)
	case err == nil && !within(bytes, r.GetCapacityRange()):
		return nil, status.Errorf(codes.AlreadyExists, "volume %s exists with %d bytes", name, bytes)
	case err == nil:
		return d.created(name, bytes, r.GetVolumeContentSource()), nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, internal(err, "volume %s", name)
	}
	kept, err := d.reserve(size)
	if err != nil {
		return nil, err
	}
	defer kept()
	rec := record{Name: r.GetName(), FSType: fsType, Source: from.of, Made: time.Now().UTC()}
	if from.of != "" {
		if rec.FSType != "" && from.fsType != rec.FSType {
			return nil, status.Errorf(codes.InvalidArgument, "the source of volume %s has file system %q, not %q", name,
				from.fsType, rec.FSType)
		}
		rec.FSType = from.fsType
	}
	err = d.volumes.put(name, rec, func(file string) error {
		if from.of != "" {
			return errors.Join(from.copy(ctx, file), os.Truncate(file, size))
		}
		return format(ctx, file, size, fsType)
	})
	if err != nil {
		return nil, internal(err, "make volume %s", name)
	}
	return d.created(name, size, r.GetVolumeContentSource()), nil
}

func (d *Driver) created(id string, bytes int64, from *csipb.VolumeContentSource) *csipb.CreateVolumeResponse {
	return &csipb.CreateVolumeResponse{Volume: &csipb.Volume{
		VolumeId:           id,
		CapacityBytes:      bytes,
		ContentSource:      from,
		AccessibleTopology: []*csipb.Topology{{Segments: map[string]string{TopologyKey: d.node}}},
	}}
}

// here tells whether a volume may be on this node.
func (d *Driver) here(r *csipb.TopologyRequirement) bool {
	where := slices.Concat(r.GetRequisite(), r.GetPreferred())
	return len(where) == 0 || slices.ContainsFunc(where, func(t *csipb.Topology) bool {
		node, ok := t.GetSegments()[TopologyKey]
		return !ok || node == d.node
	})
}

// sizeOf is how large a volume is to be, and at least.
func sizeOf(r *csipb.CapacityRange, least int64) (int64, error) {
	size := r.GetRequiredBytes()
	if r.GetRequiredBytes() < 0 || r.GetLimitBytes() < 0 {
		return 0, status.Error(codes.InvalidArgument, "capacity_range is negative")
	}
	if size == 0 {
		size = usualSize
		if limit := r.GetLimitBytes(); limit != 0 && limit < size {
			size = limit / granularity * granularity
		}
	}
	size = max(size, least)
	size = (size + granularity - 1) / granularity * granularity
	if limit := r.GetLimitBytes(); size < 0 || limit != 0 && size > limit {
		return 0, status.Errorf(codes.OutOfRange, "no volume of at least %d and at most %d bytes can be made",
			r.GetRequiredBytes(), limit)
	}
	return size, nil
}

func within(bytes int64, r *csipb.CapacityRange) bool {
	return bytes >= r.GetRequiredBytes() && (r.GetLimitBytes() == 0 || bytes <= r.GetLimitBytes())
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

// DeleteVolume implements csipb.ControllerServer.
func (d *Driver) DeleteVolume(_ context.Context, r *csipb.DeleteVolumeRequest) (*csipb.DeleteVolumeResponse, error) {
	name := r.GetVolumeId()
	if name == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	}
	done, err := d.busy.take(name)
	if err != nil {
		return nil, err
	}
	defer done()
	if _, _, err := d.volumes.get(name); err == nil {
		devices, err := attached(d.volumes.image(name))
		if err != nil {
			return nil, internal(err, "volume %s", name)
		}
		if len(devices) > 0 {
			return nil, status.Errorf(codes.FailedPrecondition, "volume %s is in use on this node (%s)", name,
				devices[0])
		}
	}
	if err := d.volumes.remove(name); err != nil {
		return nil, internal(err, "delete volume %s", name)
	}
	return &csipb.DeleteVolumeResponse{}, nil
}

// ControllerExpandVolume implements csipb.ControllerServer.
func (d *Driver) ControllerExpandVolume(_ context.Context, r *csipb.ControllerExpandVolumeRequest) (
	*csipb.ControllerExpandVolumeResponse, error) {
	name := r.GetVolumeId()
	switch {
	case name == "":
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	case r.GetCapacityRange() == nil:
		return nil, status.Error(codes.InvalidArgument, "capacity_range is missing")
	}
	done, err := d.busy.take(name)
	if err != nil {
		return nil, err
	}
	defer done()
	_, has, err := d.volumes.get(name)
	if err != nil {
		return nil, internal(err, "volume %s", name)
	}
	size := has
	if r.GetCapacityRange().GetRequiredBytes() != 0 {
		if size, err = sizeOf(r.GetCapacityRange(), 0); err != nil {
			return nil, err
		}
	}
	if size > has {
		kept, err := d.reserve(size - has)
		if err != nil {
			return nil, err
		}
		defer kept()
		file := d.volumes.image(name)
		if err := errors.Join(os.Truncate(file, size), synced(file)); err != nil {
			return nil, internal(err, "expand volume %s", name)
		}
		has = size
	}
	return &csipb.ControllerExpandVolumeResponse{CapacityBytes: has, NodeExpansionRequired: true}, nil
}

// GetCapacity implements csipb.ControllerServer.
func (d *Driver) GetCapacity(_ context.Context, r *csipb.GetCapacityRequest) (*csipb.GetCapacityResponse, error) {
	if node, ok := r.GetAccessibleTopology().GetSegments()[TopologyKey]; ok && node != d.node {
		return &csipb.GetCapacityResponse{}, nil
	}
	d.promises.Lock()
	defer d.promises.Unlock()
	room, err := d.room()
	if err != nil {
		return nil, internal(err, "look for room")
	}
	room = max(0, room) / granularity * granularity
	least := leastSize("")
	if len(r.GetVolumeCapabilities()) > 0 {
		fsType, err := d.supported(r.GetVolumeCapabilities())
		if err != nil {
			return &csipb.GetCapacityResponse{}, nil // there is no room for what cannot be
		}
		least = leastSize(fsType)
	}
	return &csipb.GetCapacityResponse{
		AvailableCapacity: room,
		MaximumVolumeSize: wrapperspb.Int64(room),
		MinimumVolumeSize: wrapperspb.Int64(least),
	}, nil
}

// ValidateVolumeCapabilities implements csipb.ControllerServer.
func (d *Driver) ValidateVolumeCapabilities(_ context.Context, r *csipb.ValidateVolumeCapabilitiesRequest) (
	*csipb.ValidateVolumeCapabilitiesResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	}
	if len(r.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "volume_capabilities are missing")
	}
	if _, _, err := d.volumes.get(r.GetVolumeId()); err != nil {
		return nil, internal(err, "volume %s", r.GetVolumeId())
	}
	if _, err := d.supported(r.GetVolumeCapabilities()); err != nil {
		return &csipb.ValidateVolumeCapabilitiesResponse{Message: status.Convert(err).Message()}, nil
	}
	return &csipb.ValidateVolumeCapabilitiesResponse{
		Confirmed: &csipb.ValidateVolumeCapabilitiesResponse_Confirmed{
			VolumeContext:      r.GetVolumeContext(),
			VolumeCapabilities: r.GetVolumeCapabilities(),
			Parameters:         r.GetParameters(),
		},
	}, nil
}

// supported refuses what volumes cannot be used as, and tells the file system they
// need: "" for plain devices.
func (d *Driver) supported(list []*csipb.VolumeCapability) (fsType string, err error) {
	if len(list) == 0 {
		return "", status.Error(codes.InvalidArgument, "volume_capabilities are missing")
	}
	blocks := 0
	for _, c := range list {
		if err := usable(c); err != nil {
			return "", err
		}
		if c.GetBlock() != nil {
			blocks++
			continue
		}
		want := c.GetMount().GetFsType()
		if want == "" {
			want = d.fsType
		}
		if fsType != "" && fsType != want {
			return "", status.Errorf(codes.InvalidArgument, "one volume cannot have the file systems %s and %s", fsType,
				want)
		}
		fsType = want
	}
	if blocks > 0 && fsType != "" {
		return "", status.Error(codes.InvalidArgument, "one volume cannot be a file system and a plain device")
	}
	return fsType, nil
}

// usable refuses one use of a volume.
func usable(c *csipb.VolumeCapability) error {
	switch c.GetAccessMode().GetMode() {
	case csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
		csipb.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
		csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
	default:
		return status.Errorf(codes.InvalidArgument, "access mode %s: volumes are on one node",
			c.GetAccessMode().GetMode())
	}
	switch {
	case c.GetBlock() != nil:
		return nil
	case c.GetMount() == nil:
		return status.Error(codes.InvalidArgument, "volume_capability has no access type")
	}
	if t := c.GetMount().GetFsType(); t != "" && !fileSystems[t] {
		return status.Errorf(codes.InvalidArgument, "file system %q: ext4 and xfs can be made", t)
	}
	return nil
}

// ListVolumes implements csipb.ControllerServer.
func (d *Driver) ListVolumes(_ context.Context, r *csipb.ListVolumesRequest) (*csipb.ListVolumesResponse, error) {
	ids, err := d.volumes.ids()
	if err != nil {
		return nil, internal(err, "list volumes")
	}
	ids, next, err := page(ids, r.GetStartingToken(), r.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	out := &csipb.ListVolumesResponse{NextToken: next}
	for _, name := range ids {
		_, size, err := d.volumes.get(name)
		if err != nil {
			continue // it was deleted meanwhile
		}
		volume := d.created(name, size, nil).GetVolume()
		out.Entries = append(out.Entries, &csipb.ListVolumesResponse_Entry{Volume: volume})
	}
	return out, nil
}

// page is a part of a sorted list, from where another ended.
func page(ids []string, token string, limit int32) (part []string, next string, err error) {
	begin := 0
	if token != "" {
		found := false
		if begin, found = slices.BinarySearch(ids, token); !found {
			return nil, "", status.Errorf(codes.Aborted, "starting_token %q is not known: list again without one",
				token)
		}
	}
	ids = ids[begin:]
	if limit < 0 {
		return nil, "", status.Error(codes.InvalidArgument, "max_entries is negative")
	}
	if limit > 0 && int(limit) < len(ids) {
		return ids[:limit], ids[limit], nil
	}
	return ids, "", nil
}

// CreateSnapshot implements csipb.ControllerServer.
func (d *Driver) CreateSnapshot(ctx context.Context, r *csipb.CreateSnapshotRequest) (
	*csipb.CreateSnapshotResponse, error) {
	switch {
	case !d.shares:
		return nil, status.Errorf(codes.Unimplemented, "the disk of %s cannot share blocks between files",
			d.volumes.dir)
	case r.GetName() == "":
		return nil, status.Error(codes.InvalidArgument, "name is missing")
	case r.GetSourceVolumeId() == "":
		return nil, status.Error(codes.InvalidArgument, "source_volume_id is missing")
	}
	name := id(r.GetName())
	done, err := d.busy.take("snapshot " + name)
	if err != nil {
		return nil, err
	}
	defer done()
	rec, size, err := d.snapshots.get(name)
	switch {
	case err == nil && (rec.Name != r.GetName() || rec.Source != r.GetSourceVolumeId()):
		return nil, status.Errorf(codes.AlreadyExists, "snapshot %s exists, of volume %s", name, rec.Source)
	case err == nil:
		return &csipb.CreateSnapshotResponse{Snapshot: shown(name, rec, size)}, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, internal(err, "snapshot %s", name)
	}
	of, size, err := d.volumes.get(r.GetSourceVolumeId())
	if err != nil {
		return nil, internal(err, "volume %s", r.GetSourceVolumeId())
	}
	kept, err := d.reserveSnapshot(r.GetSourceVolumeId())
	if err != nil {
		return nil, err
	}
	defer kept()
	rec = record{Name: r.GetName(), FSType: of.FSType, Source: r.GetSourceVolumeId(), Made: time.Now().UTC()}
	err = d.snapshots.put(name, rec, func(file string) error {
		return still(ctx, d.volumes.image(rec.Source), func(from string) error {
			return d.snapshots.copied(from, file)
		})
	})
	if err != nil {
		return nil, internal(err, "make snapshot %s", name)
	}
	return &csipb.CreateSnapshotResponse{Snapshot: shown(name, rec, size)}, nil
}

func shown(id string, r record, size int64) *csipb.Snapshot {
	return &csipb.Snapshot{
		SnapshotId: id, SourceVolumeId: r.Source, SizeBytes: size,
		CreationTime: timestamppb.New(r.Made), ReadyToUse: true,
	}
}

// DeleteSnapshot implements csipb.ControllerServer.
func (d *Driver) DeleteSnapshot(_ context.Context, r *csipb.DeleteSnapshotRequest) (
	*csipb.DeleteSnapshotResponse, error) {
	name := r.GetSnapshotId()
	if name == "" {
		return nil, status.Error(codes.InvalidArgument, "snapshot_id is missing")
	}
	done, err := d.busy.take("snapshot " + name)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := d.snapshots.remove(name); err != nil {
		return nil, internal(err, "delete snapshot %s", name)
	}
	return &csipb.DeleteSnapshotResponse{}, nil
}

// ListSnapshots implements csipb.ControllerServer.
func (d *Driver) ListSnapshots(_ context.Context, r *csipb.ListSnapshotsRequest) (*csipb.ListSnapshotsResponse, error) {
	all, err := d.snapshots.ids()
	if err != nil {
		return nil, internal(err, "list snapshots")
	}
	found := map[string]*csipb.Snapshot{}
	ids := slices.DeleteFunc(all, func(name string) bool {
		rec, size, err := d.snapshots.get(name)
		other := r.GetSnapshotId() != "" && r.GetSnapshotId() != name ||
			r.GetSourceVolumeId() != "" && r.GetSourceVolumeId() != rec.Source
		if err != nil || other {
			return true
		}
		found[name] = shown(name, rec, size)
		return false
	})
	ids, next, err := page(ids, r.GetStartingToken(), r.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	out := &csipb.ListSnapshotsResponse{NextToken: next}
	for _, name := range ids {
		out.Entries = append(out.Entries, &csipb.ListSnapshotsResponse_Entry{Snapshot: found[name]})
	}
	return out, nil
}

// source is what a volume is copied from.
type source struct {
	of, fsType string
	copy       func(ctx context.Context, to string) error
}

// source finds it, and has size be large enough for it.
func (d *Driver) source(s *csipb.VolumeContentSource, size *int64, limits *csipb.CapacityRange) (source, error) {
	if s == nil {
		return source{}, nil
	}
	if !d.shares {
		return source{}, status.Errorf(codes.InvalidArgument,
			"volume_content_source: the disk of %s cannot share blocks between files", d.volumes.dir)
	}
	shelf, name, of := d.volumes, s.GetVolume().GetVolumeId(), "volume "
	if s.GetSnapshot() != nil {
		shelf, name, of = d.snapshots, s.GetSnapshot().GetSnapshotId(), "snapshot "
	}
	rec, bytes, err := shelf.get(name)
	if err != nil {
		return source{}, internal(err, "%s%s", of, name)
	}
	*size = max(*size, bytes)
	if limit := limits.GetLimitBytes(); limit != 0 && *size > limit {
		return source{}, status.Errorf(codes.OutOfRange, "%s%s has %d bytes, more than the limit", of, name, bytes)
	}
	return source{of: of + name, fsType: rec.FSType, copy: func(ctx context.Context, to string) error {
		return still(ctx, shelf.image(name), func(from string) error { return d.volumes.copied(from, to) })
	}}, nil
}
