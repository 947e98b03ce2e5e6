package local

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
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
	if err := noParameters(r.GetParameters()); err != nil {
		return nil, err
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
	kept, err := d.reserve(size, from.volume)
	if err != nil {
		return nil, err
	}
	defer kept()
	if err := d.makeVolume(ctx, name, size, record{Name: r.GetName(), FSType: fsType}, from); err != nil {
		return nil, internal(err, "make volume %s", name)
	}
	return d.created(name, size, r.GetVolumeContentSource()), nil
}

// noParameters refuses those of a class. With their own, sidecars tell for what they ask
// (--extra-create-metadata).
func noParameters(of map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(of)) {
		if !strings.HasPrefix(name, "csi.storage.k8s.io/") {
			return status.Errorf(codes.InvalidArgument, "parameter %s is not known: the driver has none", name)
		}
	}
	return nil
}

func (d *Driver) makeVolume(ctx context.Context, name string, size int64, rec record, from *source) error {
	rec.Made = time.Now().UTC()
	if from.of != "" {
		// Without a file system the volume is a device, also where its source is none.
		rec.Source = from.of
		if rec.FSType != "" && from.FSType != rec.FSType || rec.FSType == "" && from.FSType == btrfsType {
			return status.Errorf(codes.InvalidArgument, "the source of volume %s has file system %q, not %q", name,
				from.FSType, rec.FSType)
		}
	}
	if rec.FSType == btrfsType {
		rec.Size = size
		if err := d.subvolumes.begin(); err != nil {
			return status.Error(codes.ResourceExhausted, err.Error())
		}
	}
	keeps := d.backEnd(rec.FSType)
	err := d.volumes.put(name, &rec, func(dir string) error {
		if from.of == "" {
			return keeps.make(ctx, dir, rec, size)
		}
		charged, err := keeps.copy(ctx, from.dir, dir, size)
		rec.Charged = from.charged(charged)
		return err
	})
	return errors.Join(err, d.limit(rec.Charged))
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
	rec, _, err := d.volumes.get(name)
	if err == nil {
		v, err := d.backEnd(rec.FSType).view(d.volumes.path(name))
		if err != nil {
			return nil, internal(err, "volume %s", name)
		}
		if v.used {
			return nil, status.Errorf(codes.FailedPrecondition, "volume %s is in use on this node (%s)", name,
				strings.Join(v.devices, ", "))
		}
	}
	if err := errors.Join(d.volumes.remove(name), d.limit(rec.Charged)); err != nil {
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
	rec, has, err := d.volumes.get(name)
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
		kept, err := d.reserve(size-has, "")
		if err != nil {
			return nil, err
		}
		defer kept()
		if err := d.enlarge(name, rec, size); err != nil {
			return nil, internal(err, "expand volume %s", name)
		}
		has = size
	}
	return &csipb.ControllerExpandVolumeResponse{
		CapacityBytes: has, NodeExpansionRequired: rec.FSType != btrfsType}, nil
}

// enlarge gives a volume its new size.
func (d *Driver) enlarge(name string, rec record, size int64) error {
	if rec.FSType == btrfsType {
		rec.Size = size
		return errors.Join(d.volumes.change(name, rec), d.limit(map[string]int64{name: 0}))
	}
	file := d.volumes.image(name)
	return errors.Join(os.Truncate(file, size), synced(file))
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
	if fsType == btrfsType && d.subvolumes.lacks != "" {
		return "", status.Errorf(codes.ResourceExhausted, "no volume with the file system btrfs: %s",
			d.subvolumes.lacks)
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
		return status.Errorf(codes.InvalidArgument, "file system %q: ext4, xfs and btrfs can be made", t)
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
	if err := noParameters(r.GetParameters()); err != nil {
		return nil, err
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
		return &csipb.CreateSnapshotResponse{Snapshot: d.shown(name, rec, size)}, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, internal(err, "snapshot %s", name)
	}
	of, size, err := d.volumes.get(r.GetSourceVolumeId())
	if err != nil {
		return nil, internal(err, "volume %s", r.GetSourceVolumeId())
	}
	kept, err := d.reserveSnapshot(r.GetSourceVolumeId(), of)
	if err != nil {
		return nil, err
	}
	defer kept()
	from := source{record: of, volume: r.GetSourceVolumeId(), dir: d.volumes.path(r.GetSourceVolumeId())}
	rec = record{Name: r.GetName(), FSType: of.FSType, Size: of.Size, Source: from.volume, Made: time.Now().UTC()}
	err = d.snapshots.put(name, &rec, func(dir string) error {
		charged, err := d.backEnd(of.FSType).copy(ctx, from.dir, dir, 0)
		rec.Charged = from.charged(charged)
		return err
	})
	if err := errors.Join(err, d.limit(rec.Charged)); err != nil {
		return nil, internal(err, "make snapshot %s", name)
	}
	return &csipb.CreateSnapshotResponse{Snapshot: d.shown(name, rec, size)}, nil
}

func (d *Driver) shown(id string, r record, size int64) *csipb.Snapshot {
	return &csipb.Snapshot{
		SnapshotId: d.snapshotHandle(id), SourceVolumeId: r.Source, SizeBytes: size,
		CreationTime: timestamppb.New(r.Made), ReadyToUse: true,
	}
}

// maxLabel is the longest value of a label.
const maxLabel = 63

// snapshotHandle is what others know a snapshot by: ID@NODE. By it a content of the API
// that somebody makes for a snapshot that is there gets the label that has the node's
// snapshotter find it (docs/snapshots). It is within CSI's 128 bytes.
func (d *Driver) snapshotHandle(id string) string {
	if len(d.node) > maxLabel {
		return id
	}
	return id + "@" + d.node
}

// snapshotID is the id in a handle. The node in it is not looked at: a disk may have come
// to a node of another name.
func snapshotID(handle string) string {
	id, _, _ := strings.Cut(handle, "@")
	return id
}

// DeleteSnapshot implements csipb.ControllerServer.
func (d *Driver) DeleteSnapshot(_ context.Context, r *csipb.DeleteSnapshotRequest) (
	*csipb.DeleteSnapshotResponse, error) {
	if r.GetSnapshotId() == "" {
		return nil, status.Error(codes.InvalidArgument, "snapshot_id is missing")
	}
	name := snapshotID(r.GetSnapshotId())
	done, err := d.busy.take("snapshot " + name)
	if err != nil {
		return nil, err
	}
	defer done()
	rec, _, _ := d.snapshots.get(name) // there may be none
	if err := errors.Join(d.snapshots.remove(name), d.limit(rec.Charged)); err != nil {
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
		other := r.GetSnapshotId() != "" && snapshotID(r.GetSnapshotId()) != name ||
			r.GetSourceVolumeId() != "" && r.GetSourceVolumeId() != rec.Source
		if err != nil || other {
			return true
		}
		found[name] = d.shown(name, rec, size)
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
	record
	of     string // what it is
	volume string // its id, where it is a volume
	dir    string
}

// charged is what a copy holds that counts for others: the source, and those for which
// what it holds itself counts.
func (s *source) charged(bytes int64) map[string]int64 {
	all := maps.Clone(s.Charged)
	if s.volume == "" || bytes == 0 {
		return all
	}
	if all == nil {
		all = map[string]int64{}
	}
	all[s.volume] = bytes
	return all
}

// source finds it, and has size be large enough for it.
func (d *Driver) source(s *csipb.VolumeContentSource, size *int64, limits *csipb.CapacityRange) (*source, error) {
	if s == nil {
		return &source{}, nil
	}
	if !d.shares {
		return nil, status.Errorf(codes.InvalidArgument,
			"volume_content_source: the disk of %s cannot share blocks between files", d.volumes.dir)
	}
	shelf, name, of := d.volumes, s.GetVolume().GetVolumeId(), "volume "
	if s.GetSnapshot() != nil {
		shelf, name, of = d.snapshots, snapshotID(s.GetSnapshot().GetSnapshotId()), "snapshot "
	}
	rec, bytes, err := shelf.get(name)
	if err != nil {
		return nil, internal(err, "%s%s", of, name)
	}
	*size = max(*size, bytes)
	if limit := limits.GetLimitBytes(); limit != 0 && *size > limit {
		return nil, status.Errorf(codes.OutOfRange, "%s%s has %d bytes, more than the limit", of, name, bytes)
	}
	from := &source{record: rec, of: of + name, dir: shelf.path(name)}
	if s.GetSnapshot() == nil {
		from.volume = name
	}
	return from, nil
}
