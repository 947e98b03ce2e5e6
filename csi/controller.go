package csi

import (
	"context"
	"errors"
	"fmt"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// Create is a call that makes a volume.
type Create struct {
	// Name is the same for each try of one volume.
	Name string
	// Bytes is how large it is to be at least.
	Bytes      int64
	Use        []Use
	Parameters map[string]string
	// Topology is where it has to be.
	Topology map[string]string
	Source   Source
}

// Source is what a new volume is filled from: another volume, or a snapshot. The
// driver knows either by an id; both are empty for an empty volume.
type Source struct{ Volume, Snapshot string }

func (s Source) content() *csipb.VolumeContentSource {
	switch {
	case s.Volume != "":
		return &csipb.VolumeContentSource{Type: &csipb.VolumeContentSource_Volume{
			Volume: &csipb.VolumeContentSource_VolumeSource{VolumeId: s.Volume}}}
	case s.Snapshot != "":
		return &csipb.VolumeContentSource{Type: &csipb.VolumeContentSource_Snapshot{
			Snapshot: &csipb.VolumeContentSource_SnapshotSource{SnapshotId: s.Snapshot}}}
	}
	return nil
}

// Created is a volume that a driver made.
type Created struct {
	Handle string
	// Bytes is how large it is, 0 where the driver does not tell.
	Bytes      int64
	Attributes map[string]string
}

// Create calls CreateVolume of a driver that serves it at this endpoint.
func (c *Client) Create(ctx context.Context, v Create) (Created, error) {
	if v.Name == "" {
		return Created{}, errors.New("missing volume name")
	}
	capabilities := make([]*csipb.VolumeCapability, 0, len(v.Use))
	for _, u := range v.Use {
		capabilities = append(capabilities, u.capability(true))
	}
	where := []*csipb.Topology{{Segments: v.Topology}}
	var answer *csipb.CreateVolumeResponse
	err := c.control(ctx, func(ctx context.Context, n csipb.ControllerClient) (err error) {
		answer, err = n.CreateVolume(ctx, &csipb.CreateVolumeRequest{
			Name:                      v.Name,
			CapacityRange:             &csipb.CapacityRange{RequiredBytes: v.Bytes},
			VolumeCapabilities:        capabilities,
			Parameters:                v.Parameters,
			AccessibilityRequirements: &csipb.TopologyRequirement{Requisite: where, Preferred: where},
			VolumeContentSource:       v.Source.content(),
		})
		return err
	})
	made := answer.GetVolume()
	switch {
	case err != nil:
		return Created{}, err
	case made.GetVolumeId() == "":
		return Created{}, fmt.Errorf("driver %s made volume %s without an id", c.Driver, v.Name)
	case made.GetCapacityBytes() != 0 && made.GetCapacityBytes() < v.Bytes:
		return Created{}, fmt.Errorf("driver %s made volume %s with %d bytes, not %d", c.Driver, v.Name,
			made.GetCapacityBytes(), v.Bytes)
	}
	return Created{Handle: made.GetVolumeId(), Bytes: made.GetCapacityBytes(), Attributes: made.GetVolumeContext()}, nil
}

// Delete calls DeleteVolume; it is no error that there is none.
func (c *Client) Delete(ctx context.Context, volume string) error {
	if volume == "" {
		return errors.New("missing volume id")
	}
	return c.control(ctx, func(ctx context.Context, n csipb.ControllerClient) error {
		_, err := n.DeleteVolume(ctx, &csipb.DeleteVolumeRequest{VolumeId: volume})
		return err
	})
}

// Grow calls ControllerExpandVolume, and tells how large the volume is now, and
// whether the node has to expand what is on it.
func (c *Client) Grow(ctx context.Context, volume string, bytes int64, use Use) (now int64, onNode bool, err error) {
	if volume == "" {
		return 0, false, errors.New("missing volume id")
	}
	var answer *csipb.ControllerExpandVolumeResponse
	err = c.control(ctx, func(ctx context.Context, n csipb.ControllerClient) (err error) {
		answer, err = n.ControllerExpandVolume(ctx, &csipb.ControllerExpandVolumeRequest{
			VolumeId:         volume,
			CapacityRange:    &csipb.CapacityRange{RequiredBytes: bytes},
			VolumeCapability: use.capability(true),
		})
		return err
	})
	return answer.GetCapacityBytes(), answer.GetNodeExpansionRequired(), err
}

// Room calls GetCapacity: how many bytes there are for new volumes, and how many
// one of them can have at most, 0 where the driver does not tell.
func (c *Client) Room(ctx context.Context, parameters, topology map[string]string) (free, largest int64, err error) {
	var answer *csipb.GetCapacityResponse
	err = c.control(ctx, func(ctx context.Context, n csipb.ControllerClient) (err error) {
		answer, err = n.GetCapacity(ctx, &csipb.GetCapacityRequest{
			Parameters:         parameters,
			AccessibleTopology: &csipb.Topology{Segments: topology},
		})
		return err
	})
	return answer.GetAvailableCapacity(), answer.GetMaximumVolumeSize().GetValue(), err
}

// control makes a connection for one call of the controller service.
func (c *Client) control(ctx context.Context, f func(context.Context, csipb.ControllerClient) error) error {
	return c.connected(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		return f(ctx, csipb.NewControllerClient(conn))
	})
}
