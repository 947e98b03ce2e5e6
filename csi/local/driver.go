package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/shoal-project/shoal/csi/locality"
)

// Name is what the driver calls itself.
const Name = locality.Driver

// TopologyKey has the node as value.
const TopologyKey = locality.NodeKey

// Version of the driver.
const Version = "v1.36.3"

// fileSystems are those that volumes can have.
var fileSystems = map[string]bool{"ext4": true, "xfs": true, btrfsType: true}

// Config is what New needs.
type Config struct {
	// Directory holds all that the driver keeps; it is made when missing.
	Directory string
	// NodeID is the node's name.
	NodeID string
	// FSType is the file system of volumes that are asked for without one: ext4
	// (also when empty), xfs or btrfs.
	FSType string
	Log    *slog.Logger
}

// Driver is a CSI driver: identity, controller and node services.
type Driver struct {
	csipb.UnimplementedIdentityServer
	csipb.UnimplementedControllerServer
	csipb.UnimplementedNodeServer

	volumes, snapshots shelf
	node, fsType       string
	// shares: files of the directory can share blocks.
	shares     bool
	subvolumes *subvolumes
	log        *slog.Logger

	// promises is held while room is looked for and given.
	promises sync.Mutex
	reserved int64 // bytes, for volumes that are being made
	// limits is held while limits of subvolumes are worked out and set.
	limits sync.Mutex
	busy   busy
}

// New opens the directory, and ends what a driver that was killed had begun.
func New(c Config) (*Driver, error) {
	if c.NodeID == "" || c.Directory == "" {
		return nil, errors.New("the local storage driver needs a node's name and a directory")
	}
	if c.FSType == "" {
		c.FSType = "ext4"
	}
	if !fileSystems[c.FSType] {
		return nil, fmt.Errorf("file system %q: ext4, xfs and btrfs can be made", c.FSType)
	}
	d := &Driver{
		volumes:   shelf{dir: filepath.Join(c.Directory, "volumes"), record: "volume.json"},
		snapshots: shelf{dir: filepath.Join(c.Directory, "snapshots"), record: "snapshot.json"},
		node:      c.NodeID,
		fsType:    c.FSType,
		log:       c.Log,
	}
	for _, s := range []shelf{d.volumes, d.snapshots} {
		if err := s.open(d.volumes.thaw); err != nil {
			return nil, err
		}
	}
	var err error
	if d.shares, err = shares(d.snapshots.dir); err != nil {
		return nil, err
	}
	if err := d.openSubvolumes(c); err != nil {
		return nil, err
	}
	d.log.Info("volumes are files on loop devices, and with the file system btrfs subvolumes", "dir", c.Directory,
		"snapshots", d.shares, "subvolumes", cmp.Or(d.subvolumes.lacks, "simple quotas limit them"))
	return d, nil
}

// Register has s serve the driver.
func (d *Driver) Register(s *grpc.Server) {
	csipb.RegisterIdentityServer(s, d)
	csipb.RegisterControllerServer(s, d)
	csipb.RegisterNodeServer(s, d)
}

// GetPluginInfo implements csipb.IdentityServer.
func (d *Driver) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	return &csipb.GetPluginInfoResponse{Name: Name, VendorVersion: Version}, nil
}

// GetPluginCapabilities implements csipb.IdentityServer.
func (d *Driver) GetPluginCapabilities(context.Context, *csipb.GetPluginCapabilitiesRequest) (
	*csipb.GetPluginCapabilitiesResponse, error) {
	service := func(t csipb.PluginCapability_Service_Type) *csipb.PluginCapability {
		return &csipb.PluginCapability{Type: &csipb.PluginCapability_Service_{
			Service: &csipb.PluginCapability_Service{Type: t}}}
	}
	return &csipb.GetPluginCapabilitiesResponse{Capabilities: []*csipb.PluginCapability{
		service(csipb.PluginCapability_Service_CONTROLLER_SERVICE),
		service(csipb.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS),
		{Type: &csipb.PluginCapability_VolumeExpansion_{VolumeExpansion: &csipb.PluginCapability_VolumeExpansion{
			Type: csipb.PluginCapability_VolumeExpansion_ONLINE}}},
	}}, nil
}

// Probe implements csipb.IdentityServer.
func (d *Driver) Probe(context.Context, *csipb.ProbeRequest) (*csipb.ProbeResponse, error) {
	if _, err := os.Stat(d.volumes.dir); err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "the directory of volumes is not there: %v", err)
	}
	return &csipb.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// busy tells which volumes a call is at work on: CSI has a second one refused.
type busy struct {
	mu    sync.Mutex
	names map[string]bool
}

// take begins work on a volume; done ends it.
func (b *busy) take(name string) (done func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.names[name] {
		return nil, status.Errorf(codes.Aborted, "another call for %s is not over", name)
	}
	if b.names == nil {
		b.names = map[string]bool{}
	}
	b.names[name] = true
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.names, name)
	}, nil
}

// run calls a program, and tells what it said when it fails.
func run(ctx context.Context, program string, args ...string) error {
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return status.Errorf(codes.FailedPrecondition, "the node has no program %s", program)
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// internal gives an error that has no code one: no room, or the driver's own.
func internal(err error, what string, args ...any) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	text := fmt.Sprintf(what, args...) + ": " + err.Error()
	switch {
	case noSpace(err):
		return status.Error(codes.ResourceExhausted, text)
	case errors.Is(err, fs.ErrNotExist):
		return status.Error(codes.NotFound, text)
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, text)
	}
	return status.Error(codes.Internal, text)
}
