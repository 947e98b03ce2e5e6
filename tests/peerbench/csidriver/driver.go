package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
	registrationv1 "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// driver serves one node. A volume is a directory below volumes, with its data and,
// while it is attached, a file that names the node.
type driver struct {
	csipb.UnimplementedIdentityServer
	csipb.UnimplementedControllerServer
	csipb.UnimplementedNodeServer
	registrationv1.UnimplementedRegistrationServer

	name, node, volumes, endpoint string
}

func (d *driver) data(volume string) string     { return filepath.Join(d.volumes, volume, "data") }
func (d *driver) attached(volume string) string { return filepath.Join(d.volumes, volume, "node") }

// named refuses an identifier that is no name of a directory.
func named(volume string) error {
	if volume == "" || strings.ContainsRune(volume, '/') || strings.HasPrefix(volume, ".") {
		return status.Errorf(codes.InvalidArgument, "volume %q: it has to be the name of a directory", volume)
	}
	return nil
}

// GetInfo implements the registration service.
func (d *driver) GetInfo(context.Context, *registrationv1.InfoRequest) (*registrationv1.PluginInfo, error) {
	return &registrationv1.PluginInfo{Type: registrationv1.CSIPlugin, Name: d.name, Endpoint: d.endpoint,
		SupportedVersions: []string{"1.0.0"}}, nil
}

// NotifyRegistrationStatus implements the registration service.
func (d *driver) NotifyRegistrationStatus(context.Context, *registrationv1.RegistrationStatus) (
	*registrationv1.RegistrationStatusResponse, error) {
	return &registrationv1.RegistrationStatusResponse{}, nil
}

// GetPluginInfo implements the identity service.
func (d *driver) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	return &csipb.GetPluginInfoResponse{Name: d.name, VendorVersion: "1"}, nil
}

// Probe implements the identity service.
func (d *driver) Probe(context.Context, *csipb.ProbeRequest) (*csipb.ProbeResponse, error) {
	return &csipb.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// GetPluginCapabilities implements the identity service.
func (d *driver) GetPluginCapabilities(context.Context, *csipb.GetPluginCapabilitiesRequest) (
	*csipb.GetPluginCapabilitiesResponse, error) {
	return &csipb.GetPluginCapabilitiesResponse{Capabilities: []*csipb.PluginCapability{{
		Type: &csipb.PluginCapability_Service_{Service: &csipb.PluginCapability_Service{
			Type: csipb.PluginCapability_Service_CONTROLLER_SERVICE}}}}}, nil
}

// ControllerGetCapabilities implements the controller service.
func (d *driver) ControllerGetCapabilities(context.Context, *csipb.ControllerGetCapabilitiesRequest) (
	*csipb.ControllerGetCapabilitiesResponse, error) {
	answer := &csipb.ControllerGetCapabilitiesResponse{}
	for _, c := range []csipb.ControllerServiceCapability_RPC_Type{
		csipb.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csipb.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
	} {
		answer.Capabilities = append(answer.Capabilities, &csipb.ControllerServiceCapability{
			Type: &csipb.ControllerServiceCapability_Rpc{Rpc: &csipb.ControllerServiceCapability_RPC{Type: c}}})
	}
	return answer, nil
}

// CreateVolume implements the controller service.
func (d *driver) CreateVolume(_ context.Context, r *csipb.CreateVolumeRequest) (*csipb.CreateVolumeResponse, error) {
	if err := named(r.Name); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(d.data(r.Name), 0o777); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csipb.CreateVolumeResponse{Volume: &csipb.Volume{VolumeId: r.Name,
		CapacityBytes: r.GetCapacityRange().GetRequiredBytes()}}, nil
}

// DeleteVolume implements the controller service.
func (d *driver) DeleteVolume(_ context.Context, r *csipb.DeleteVolumeRequest) (*csipb.DeleteVolumeResponse, error) {
	if err := named(r.VolumeId); err != nil {
		return nil, err
	}
	if node, err := os.ReadFile(d.attached(r.VolumeId)); err == nil {
		return nil, status.Errorf(codes.FailedPrecondition, "%s is attached to %s", r.VolumeId, node)
	}
	if err := os.RemoveAll(filepath.Join(d.volumes, r.VolumeId)); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csipb.DeleteVolumeResponse{}, nil
}

// ControllerPublishVolume implements the controller service.
func (d *driver) ControllerPublishVolume(_ context.Context, r *csipb.ControllerPublishVolumeRequest) (
	*csipb.ControllerPublishVolumeResponse, error) {
	if err := named(r.VolumeId); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(d.attached(r.VolumeId), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case errors.Is(err, fs.ErrExist):
		if err := d.here(r.VolumeId, r.NodeId); err != nil {
			return nil, err
		}
		return &csipb.ControllerPublishVolumeResponse{}, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, status.Errorf(codes.NotFound, "there is no volume %s", r.VolumeId)
	case err != nil:
		return nil, status.Error(codes.Internal, err.Error())
	}
	_, err = file.WriteString(r.NodeId)
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csipb.ControllerPublishVolumeResponse{}, nil
}

// ControllerUnpublishVolume implements the controller service.
func (d *driver) ControllerUnpublishVolume(_ context.Context, r *csipb.ControllerUnpublishVolumeRequest) (
	*csipb.ControllerUnpublishVolumeResponse, error) {
	if err := named(r.VolumeId); err != nil {
		return nil, err
	}
	if d.here(r.VolumeId, r.NodeId) == nil {
		if err := os.Remove(d.attached(r.VolumeId)); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	return &csipb.ControllerUnpublishVolumeResponse{}, nil
}

// here refuses what is not attached to a node.
func (d *driver) here(volume, node string) error {
	has, err := os.ReadFile(d.attached(volume))
	if err != nil {
		return status.Errorf(codes.FailedPrecondition, "%s is not attached: %v", volume, err)
	}
	if string(has) != node {
		return status.Errorf(codes.FailedPrecondition, "%s is attached to %s, not to %s", volume, has, node)
	}
	return nil
}

// NodeGetInfo implements the node service.
func (d *driver) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	return &csipb.NodeGetInfoResponse{NodeId: d.node}, nil
}

// NodeGetCapabilities implements the node service.
func (d *driver) NodeGetCapabilities(context.Context, *csipb.NodeGetCapabilitiesRequest) (
	*csipb.NodeGetCapabilitiesResponse, error) {
	return &csipb.NodeGetCapabilitiesResponse{Capabilities: []*csipb.NodeServiceCapability{{
		Type: &csipb.NodeServiceCapability_Rpc{Rpc: &csipb.NodeServiceCapability_RPC{
			Type: csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME}}}}}, nil
}

// NodeStageVolume implements the node service.
func (d *driver) NodeStageVolume(_ context.Context, r *csipb.NodeStageVolumeRequest) (
	*csipb.NodeStageVolumeResponse, error) {
	if err := errors.Join(named(r.VolumeId), d.here(r.VolumeId, d.node)); err != nil {
		return nil, err
	}
	return &csipb.NodeStageVolumeResponse{}, bind(d.data(r.VolumeId), r.StagingTargetPath)
}

// NodePublishVolume implements the node service.
func (d *driver) NodePublishVolume(_ context.Context, r *csipb.NodePublishVolumeRequest) (
	*csipb.NodePublishVolumeResponse, error) {
	return &csipb.NodePublishVolumeResponse{}, bind(r.StagingTargetPath, r.TargetPath)
}

// NodeUnpublishVolume implements the node service.
func (d *driver) NodeUnpublishVolume(_ context.Context, r *csipb.NodeUnpublishVolumeRequest) (
	*csipb.NodeUnpublishVolumeResponse, error) {
	if err := unbind(r.TargetPath); err != nil {
		return nil, err
	}
	if err := os.Remove(r.TargetPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csipb.NodeUnpublishVolumeResponse{}, nil
}

// NodeUnstageVolume implements the node service.
func (d *driver) NodeUnstageVolume(_ context.Context, r *csipb.NodeUnstageVolumeRequest) (
	*csipb.NodeUnstageVolumeResponse, error) {
	return &csipb.NodeUnstageVolumeResponse{}, unbind(r.StagingTargetPath)
}

// bind mounts a directory at another, once.
func bind(from, at string) error {
	err := os.MkdirAll(at, 0o750)
	var mounted, parent unix.Stat_t
	if err == nil {
		err = errors.Join(unix.Stat(at, &mounted), unix.Stat(from, &parent))
	}
	switch {
	case err != nil:
		return status.Error(codes.Internal, err.Error())
	case mounted.Dev == parent.Dev && mounted.Ino == parent.Ino:
		return nil
	}
	if err := unix.Mount(from, at, "", unix.MS_BIND, ""); err != nil {
		return status.Errorf(codes.Internal, "mount %s at %s: %v", from, at, err)
	}
	return nil
}

// unbind unmounts a directory, if it is mounted.
func unbind(at string) error {
	err := unix.Unmount(at, unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, fs.ErrNotExist) {
		return status.Errorf(codes.Internal, "unmount %s: %v", at, err)
	}
	return nil
}
