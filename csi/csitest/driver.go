// Package csitest has a storage driver for tests: it speaks CSI at a socket and
// holds what it was asked to do as state that can be read, and it tells of every
// call that a driver must never get, as a volume that is unstaged while a pod has
// it.
package csitest

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Mounts has effects on the node, where the driver shall have any.
type Mounts interface {
	// Stage makes the volume at a directory, Publish shows it at another.
	Stage(volume, path string) error
	Publish(volume, staged, path string, block bool) error
	// Undo takes either away; nothing there is no error.
	Undo(path string) error
}

// Driver is a node service of a storage driver.
type Driver struct {
	csipb.UnimplementedNodeServer
	csipb.UnimplementedIdentityServer

	Name string
	// Info is the answer to NodeGetInfo, Capabilities to NodeGetCapabilities.
	Info         *csipb.NodeGetInfoResponse
	Capabilities []csipb.NodeServiceCapability_RPC_Type
	Stats        *csipb.NodeGetVolumeStatsResponse
	// Mounts may be nil: then nothing is mounted.
	Mounts Mounts
	// Before is asked before each call, by its method without the service, and may
	// refuse it; nil: none is refused. After is asked when the work is done, so
	// that an error of it leaves the caller uncertain.
	Before, After func(ctx context.Context, method, volume string) error

	mu        sync.Mutex
	staged    map[string]string // volume by path
	published map[string]string
	expanded  map[string]int64 // bytes by volume
	calls     []string
	faults    []string
	requests  map[string]any // the last of each method
}

// Serve has the driver speak at a socket in a directory of its own until the test
// ends, and returns the socket's path. Other tests fail when the driver was called
// as it never must.
func (d *Driver) Serve(t *testing.T) string {
	t.Helper()
	path, _ := d.Start(t)
	return path
}

// Start is Serve for a driver that may end before its test.
func (d *Driver) Start(t *testing.T) (path string, end func()) {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi") // short: a socket's name has 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "csi.sock")
	stop := d.Listen(t, path)
	end = sync.OnceFunc(func() {
		stop()
		for _, fault := range d.Faults() {
			t.Error(fault)
		}
		_ = os.RemoveAll(dir)
	})
	t.Cleanup(end)
	return path, end
}

// Listen has the driver speak at a socket until stop is called.
func (d *Driver) Listen(t *testing.T, path string) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.UnaryInterceptor(d.intercept))
	csipb.RegisterNodeServer(s, d)
	csipb.RegisterIdentityServer(s, d)
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) }) // it returns when it is stopped
	return func() {
		s.Stop()
		serving.Wait()
	}
}

// String lists what is staged and published, by path.
func (d *Driver) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var b strings.Builder
	for _, path := range slices.Sorted(maps.Keys(d.staged)) {
		fmt.Fprintf(&b, "staged %s at %s\n", d.staged[path], path)
	}
	for _, path := range slices.Sorted(maps.Keys(d.published)) {
		fmt.Fprintf(&b, "published %s at %s\n", d.published[path], path)
	}
	return b.String()
}

// Calls are those that have effects, in order, since the last time.
func (d *Driver) Calls() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := d.calls
	d.calls = nil
	return out
}

// Faults are calls that no driver must get.
func (d *Driver) Faults() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.faults)
}

// Last is the last request of a method, nil for none.
func (d *Driver) Last(method string) any {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.requests[method]
}

// Expanded is how large a volume was made last.
func (d *Driver) Expanded(volume string) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.expanded[volume]
}

// Reboot forgets what is staged and published, as a machine that starts anew.
func (d *Driver) Reboot() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.staged, d.published = nil, nil
}

func (d *Driver) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (
	any, error) {
	method := info.FullMethod[strings.LastIndex(info.FullMethod, "/")+1:]
	volume := ""
	if named, ok := request.(interface{ GetVolumeId() string }); ok {
		volume = named.GetVolumeId()
	}
	if d.Before != nil {
		if err := d.Before(ctx, method, volume); err != nil {
			return nil, err
		}
	}
	d.mu.Lock()
	if d.requests == nil {
		d.requests = map[string]any{}
	}
	d.requests[method] = request
	if volume != "" {
		d.calls = append(d.calls, method+" "+volume)
	}
	d.mu.Unlock()
	answer, err := handle(ctx, request)
	if err == nil && d.After != nil {
		err = d.After(ctx, method, volume)
	}
	if err != nil {
		return nil, err
	}
	return answer, nil
}

func (d *Driver) fault(format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	d.faults = append(d.faults, text)
	return status.Error(codes.FailedPrecondition, text)
}

func (d *Driver) can(c csipb.NodeServiceCapability_RPC_Type) bool {
	return slices.Contains(d.Capabilities, c)
}

// GetPluginInfo implements the identity service.
func (d *Driver) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	return &csipb.GetPluginInfoResponse{Name: d.Name, VendorVersion: "1"}, nil
}

// NodeGetInfo implements the node service.
func (d *Driver) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	if d.Info == nil {
		return &csipb.NodeGetInfoResponse{NodeId: "node-of-" + d.Name}, nil
	}
	return d.Info, nil
}

// NodeGetCapabilities implements the node service.
func (d *Driver) NodeGetCapabilities(context.Context, *csipb.NodeGetCapabilitiesRequest) (
	*csipb.NodeGetCapabilitiesResponse, error) {
	answer := &csipb.NodeGetCapabilitiesResponse{}
	for _, c := range d.Capabilities {
		answer.Capabilities = append(answer.Capabilities, &csipb.NodeServiceCapability{
			Type: &csipb.NodeServiceCapability_Rpc{Rpc: &csipb.NodeServiceCapability_RPC{Type: c}}})
	}
	return answer, nil
}

const stages = csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME

// NodeStageVolume implements the node service.
func (d *Driver) NodeStageVolume(_ context.Context, r *csipb.NodeStageVolumeRequest) (
	*csipb.NodeStageVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.can(stages) {
		return nil, d.fault("%s is staged by a driver that does not stage", r.VolumeId)
	}
	for path, volume := range d.staged {
		if volume == r.VolumeId && path != r.StagingTargetPath {
			return nil, d.fault("%s is staged at %s and at %s", volume, path, r.StagingTargetPath)
		}
	}
	if st, err := os.Stat(r.StagingTargetPath); err != nil || !st.IsDir() {
		return nil, d.fault("%s is staged where no directory is: %v", r.VolumeId, err)
	}
	if d.Mounts != nil && d.staged[r.StagingTargetPath] == "" {
		if err := d.Mounts.Stage(r.VolumeId, r.StagingTargetPath); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	if d.staged == nil {
		d.staged = map[string]string{}
	}
	d.staged[r.StagingTargetPath] = r.VolumeId
	return &csipb.NodeStageVolumeResponse{}, nil
}

// NodePublishVolume implements the node service.
func (d *Driver) NodePublishVolume(_ context.Context, r *csipb.NodePublishVolumeRequest) (
	*csipb.NodePublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ephemeral := r.VolumeContext["csi.storage.k8s.io/ephemeral"] == "true"
	if d.can(stages) && !ephemeral && d.staged[r.StagingTargetPath] != r.VolumeId {
		return nil, d.fault("%s is published from %q, where it is not staged", r.VolumeId, r.StagingTargetPath)
	}
	if st, err := os.Stat(filepath.Dir(r.TargetPath)); err != nil || !st.IsDir() {
		return nil, d.fault("%s is published where no directory is: %v", r.VolumeId, err)
	}
	if d.Mounts != nil && d.published[r.TargetPath] == "" {
		block := r.GetVolumeCapability().GetBlock() != nil
		if err := d.Mounts.Publish(r.VolumeId, r.StagingTargetPath, r.TargetPath, block); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	if d.Mounts == nil {
		if err := place(r.TargetPath, r.GetVolumeCapability().GetBlock() != nil); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	if d.published == nil {
		d.published = map[string]string{}
	}
	d.published[r.TargetPath] = r.VolumeId
	return &csipb.NodePublishVolumeResponse{}, nil
}

// place makes what a driver makes at a target.
func place(path string, block bool) error {
	if !block {
		return os.MkdirAll(path, 0o750)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// NodeUnpublishVolume implements the node service.
func (d *Driver) NodeUnpublishVolume(_ context.Context, r *csipb.NodeUnpublishVolumeRequest) (
	*csipb.NodeUnpublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if volume := d.published[r.TargetPath]; volume != "" && volume != r.VolumeId {
		return nil, d.fault("%s is unpublished from %s, where %s is", r.VolumeId, r.TargetPath, volume)
	}
	if d.Mounts != nil {
		if err := d.Mounts.Undo(r.TargetPath); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	delete(d.published, r.TargetPath)
	if err := os.Remove(r.TargetPath); err != nil && !os.IsNotExist(err) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csipb.NodeUnpublishVolumeResponse{}, nil
}

// NodeUnstageVolume implements the node service.
func (d *Driver) NodeUnstageVolume(_ context.Context, r *csipb.NodeUnstageVolumeRequest) (
	*csipb.NodeUnstageVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for path, volume := range d.published {
		if volume == r.VolumeId {
			return nil, d.fault("%s is unstaged while it is published at %s", volume, path)
		}
	}
	if volume := d.staged[r.StagingTargetPath]; volume != "" && volume != r.VolumeId {
		return nil, d.fault("%s is unstaged from %s, where %s is", r.VolumeId, r.StagingTargetPath, volume)
	}
	if d.Mounts != nil {
		if err := d.Mounts.Undo(r.StagingTargetPath); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	delete(d.staged, r.StagingTargetPath)
	return &csipb.NodeUnstageVolumeResponse{}, nil
}

// NodeGetVolumeStats implements the node service.
func (d *Driver) NodeGetVolumeStats(_ context.Context, r *csipb.NodeGetVolumeStatsRequest) (
	*csipb.NodeGetVolumeStatsResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.published[r.VolumePath] != r.VolumeId {
		return nil, status.Errorf(codes.NotFound, "%s is not at %s", r.VolumeId, r.VolumePath)
	}
	if d.Stats == nil {
		return &csipb.NodeGetVolumeStatsResponse{}, nil
	}
	return d.Stats, nil
}

// NodeExpandVolume implements the node service.
func (d *Driver) NodeExpandVolume(_ context.Context, r *csipb.NodeExpandVolumeRequest) (
	*csipb.NodeExpandVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.expanded == nil {
		d.expanded = map[string]int64{}
	}
	d.expanded[r.VolumeId] = r.GetCapacityRange().GetRequiredBytes()
	return &csipb.NodeExpandVolumeResponse{CapacityBytes: d.expanded[r.VolumeId]}, nil
}
