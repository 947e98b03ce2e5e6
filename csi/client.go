package csi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
)

// Timeout is how long one call may take.
const Timeout = 2 * time.Minute

// maxAnswer bounds what a driver answers.
const maxAnswer = 1 << 20

// Observe is told of each call that is over.
type Observe func(driver, method string, code codes.Code, took time.Duration)

// Client calls one driver: the node service, and the controller service of one that
// serves both at the same socket.
type Client struct {
	// Driver is its name, Endpoint its socket.
	Driver, Endpoint string
	// Observe may be nil.
	Observe Observe

	timeout time.Duration // of a test; zero is Timeout

	mu           sync.Mutex
	capabilities map[csipb.NodeServiceCapability_RPC_Type]bool // nil: not asked yet
}

// NodeInfo is what a driver says of this node.
type NodeInfo struct {
	// ID is what the driver calls the node.
	ID string
	// MaxVolumes is how many volumes the node can have, 0 for no limit.
	MaxVolumes int64
	// Topology is where the node is, by the driver's keys.
	Topology map[string]string
}

// NodeInfo asks what the driver calls this node.
func (c *Client) NodeInfo(ctx context.Context) (NodeInfo, error) {
	var answer *csipb.NodeGetInfoResponse
	err := c.call(ctx, func(ctx context.Context, n csipb.NodeClient) (err error) {
		answer, err = n.NodeGetInfo(ctx, &csipb.NodeGetInfoRequest{})
		return err
	})
	if err != nil {
		return NodeInfo{}, err
	}
	return NodeInfo{
		ID:         answer.GetNodeId(),
		MaxVolumes: answer.GetMaxVolumesPerNode(),
		Topology:   answer.GetAccessibleTopology().GetSegments(),
	}, nil
}

// Capabilities of a driver on a node.
type Capabilities struct {
	// Stages: volumes are staged before they are published.
	Stages bool
	// Expands, Measures, TellsCondition: it has the calls.
	Expands, Measures, TellsCondition bool
	// SingleWriters: it tells one pod that writes from several of one node.
	SingleWriters bool
	// MountsForGroup: it gives volumes to a pod's group by itself.
	MountsForGroup bool
}

// Capabilities asks what the driver can; that is as long true as it is registered.
func (c *Client) Capabilities(ctx context.Context) (Capabilities, error) {
	c.mu.Lock()
	has := c.capabilities
	c.mu.Unlock()
	if has == nil {
		has = map[csipb.NodeServiceCapability_RPC_Type]bool{}
		err := c.call(ctx, func(ctx context.Context, n csipb.NodeClient) error {
			answer, err := n.NodeGetCapabilities(ctx, &csipb.NodeGetCapabilitiesRequest{})
			for _, one := range answer.GetCapabilities() {
				if one.GetRpc() != nil {
					has[one.GetRpc().GetType()] = true
				}
			}
			return err
		})
		if err != nil {
			return Capabilities{}, err
		}
		c.mu.Lock()
		c.capabilities = has
		c.mu.Unlock()
	}
	return Capabilities{
		Stages:         has[csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME],
		Expands:        has[csipb.NodeServiceCapability_RPC_EXPAND_VOLUME],
		Measures:       has[csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS],
		TellsCondition: has[csipb.NodeServiceCapability_RPC_VOLUME_CONDITION],
		SingleWriters:  has[csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER],
		MountsForGroup: has[csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP],
	}, nil
}

// Use is how a volume is to be used.
type Use struct {
	Access corev1.PersistentVolumeAccessMode
	// Block: it is a device; then there is no file system with flags and group.
	Block  bool
	FSType string
	Flags  []string
	// Group is that which the driver shall mount for, nil for none.
	Group *int64
}

// capability is Use in the words of CSI.
func (u Use) capability(singleWriters bool) *csipb.VolumeCapability {
	out := &csipb.VolumeCapability{
		AccessMode: &csipb.VolumeCapability_AccessMode{Mode: accessMode(u.Access, singleWriters)},
	}
	if u.Block {
		out.AccessType = &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}}
		return out
	}
	mount := &csipb.VolumeCapability_MountVolume{FsType: u.FSType, MountFlags: u.Flags}
	if u.Group != nil {
		mount.VolumeMountGroup = strconv.FormatInt(*u.Group, 10)
	}
	out.AccessType = &csipb.VolumeCapability_Mount{Mount: mount}
	return out
}

func accessMode(m corev1.PersistentVolumeAccessMode, singleWriters bool) csipb.VolumeCapability_AccessMode_Mode {
	switch {
	case m == corev1.ReadOnlyMany:
		return csipb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case m == corev1.ReadWriteMany:
		return csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	case m == corev1.ReadWriteOnce && singleWriters:
		return csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	case m == corev1.ReadWriteOncePod && singleWriters:
		return csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	case m == corev1.ReadWriteOnce, m == corev1.ReadWriteOncePod:
		return csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	}
	return csipb.VolumeCapability_AccessMode_UNKNOWN
}

// Stage is a call that makes a volume ready on the node.
type Stage struct {
	Volume         string
	Path           string
	Use            Use
	PublishContext map[string]string
	VolumeContext  map[string]string
	Secrets        map[string]string
}

// Stage calls NodeStageVolume.
func (c *Client) Stage(ctx context.Context, s Stage) error {
	can, err := c.checked(ctx, s.Volume, s.Path, "missing staging target path")
	if err != nil {
		return err
	}
	return c.call(ctx, func(ctx context.Context, n csipb.NodeClient) error {
		_, err := n.NodeStageVolume(ctx, &csipb.NodeStageVolumeRequest{
			VolumeId:          s.Volume,
			StagingTargetPath: s.Path,
			VolumeCapability:  s.Use.capability(can.SingleWriters),
			PublishContext:    s.PublishContext,
			VolumeContext:     s.VolumeContext,
			Secrets:           s.Secrets,
		})
		return err
	})
}

// Unstage calls NodeUnstageVolume.
func (c *Client) Unstage(ctx context.Context, volume, path string) error {
	if err := named(volume, path, "missing staging target path"); err != nil {
		return err
	}
	return c.call(ctx, func(ctx context.Context, n csipb.NodeClient) error {
		_, err := n.NodeUnstageVolume(ctx, &csipb.NodeUnstageVolumeRequest{VolumeId: volume, StagingTargetPath: path})
		return err
	})
}

// Publish is a call that shows a volume to a pod.
type Publish struct {
	Volume string
	// StagingPath is empty where the driver does not stage.
	StagingPath, Path string
	Use               Use
	ReadOnly          bool
	PublishContext    map[string]string
	VolumeContext     map[string]string
	Secrets           map[string]string
}

// Publish calls NodePublishVolume.
func (c *Client) Publish(ctx context.Context, p Publish) error {
	can, err := c.checked(ctx, p.Volume, p.Path, "missing target path")
	if err != nil {
		return err
	}
	return c.call(ctx, func(ctx context.Context, n csipb.NodeClient) error {
		_, err := n.NodePublishVolume(ctx, &csipb.NodePublishVolumeRequest{
			VolumeId:          p.Volume,
			StagingTargetPath: p.StagingPath,
			TargetPath:        p.Path,
			VolumeCapability:  p.Use.capability(can.SingleWriters),
			Readonly:          p.ReadOnly,
			PublishContext:    p.PublishContext,
			VolumeContext:     p.VolumeContext,
			Secrets:           p.Secrets,
		})
		return err
	})
}

// Unpublish calls NodeUnpublishVolume.
func (c *Client) Unpublish(ctx context.Context, volume, path string) error {
	if err := named(volume, path, "missing target path"); err != nil {
		return err
	}
	return c.call(ctx, func(ctx context.Context, n csipb.NodeClient) error {
		_, err := n.NodeUnpublishVolume(ctx, &csipb.NodeUnpublishVolumeRequest{VolumeId: volume, TargetPath: path})
		return err
	})
}

// Expand is a call that makes use of a volume's new size.
type Expand struct {
	Volume string
	// StagingPath is empty where the driver does not stage.
	StagingPath, Path string
	Use               Use
	Bytes             int64
	Secrets           map[string]string
}

// Expand calls NodeExpandVolume.
func (c *Client) Expand(ctx context.Context, e Expand) error {
	can, err := c.checked(ctx, e.Volume, e.Path, "missing volume path")
	if err != nil {
		return err
	}
	return c.call(ctx, func(ctx context.Context, n csipb.NodeClient) error {
		_, err := n.NodeExpandVolume(ctx, &csipb.NodeExpandVolumeRequest{
			VolumeId:          e.Volume,
			VolumePath:        e.Path,
			StagingTargetPath: e.StagingPath,
			VolumeCapability:  e.Use.capability(can.SingleWriters),
			CapacityRange:     &csipb.CapacityRange{RequiredBytes: e.Bytes},
			Secrets:           e.Secrets,
		})
		return err
	})
}

// Amount is of bytes or of inodes.
type Amount struct{ Total, Used, Available int64 }

// Stats is what a driver measures of a volume.
type Stats struct {
	// Bytes and Inodes are nil where the driver does not tell them.
	Bytes, Inodes *Amount
	// Condition is nil where the driver does not tell it.
	Condition *Condition
}

// Condition is whether a volume is well.
type Condition struct {
	Abnormal bool
	Message  string
}

// Stats calls NodeGetVolumeStats.
func (c *Client) Stats(ctx context.Context, volume, path string) (Stats, error) {
	can, err := c.checked(ctx, volume, path, "missing target path")
	if err != nil {
		return Stats{}, err
	}
	var answer *csipb.NodeGetVolumeStatsResponse
	err = c.call(ctx, func(ctx context.Context, n csipb.NodeClient) (err error) {
		answer, err = n.NodeGetVolumeStats(ctx, &csipb.NodeGetVolumeStatsRequest{VolumeId: volume, VolumePath: path})
		return err
	})
	if err != nil {
		return Stats{}, err
	}
	if !can.TellsCondition && answer.GetUsage() == nil {
		return Stats{}, errors.New("failed to get usage from response. usage is nil")
	}
	var out Stats
	for _, u := range answer.GetUsage() {
		amount := &Amount{Total: u.GetTotal(), Used: u.GetUsed(), Available: u.GetAvailable()}
		switch u.GetUnit() {
		case csipb.VolumeUsage_BYTES:
			out.Bytes = amount
		case csipb.VolumeUsage_INODES:
			out.Inodes = amount
		}
	}
	if can.TellsCondition {
		out.Condition = &Condition{Abnormal: answer.GetVolumeCondition().GetAbnormal(),
			Message: shortened(answer.GetVolumeCondition().GetMessage())}
	}
	return out, nil
}

func shortened(message string) string {
	if len(message) > maxMessage {
		return message[:maxMessage] + "..."
	}
	return message
}

func named(volume, path, missing string) error {
	switch {
	case volume == "":
		return errors.New("missing volume id")
	case path == "":
		return errors.New(missing)
	}
	return nil
}

func (c *Client) checked(ctx context.Context, volume, path, missing string) (Capabilities, error) {
	if err := named(volume, path, missing); err != nil {
		return Capabilities{}, err
	}
	return c.Capabilities(ctx)
}

// call makes a connection for one call of the node service.
func (c *Client) call(ctx context.Context, f func(context.Context, csipb.NodeClient) error) error {
	return c.connected(ctx, func(ctx context.Context, conn *grpc.ClientConn) error {
		return f(ctx, csipb.NewNodeClient(conn))
	})
}

// connected makes a connection for one call.
func (c *Client) connected(ctx context.Context, f func(context.Context, *grpc.ClientConn) error) error {
	timeout := c.timeout
	if timeout == 0 {
		timeout = Timeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := c.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	return f(ctx, conn)
}

func (c *Client) dial() (*grpc.ClientConn, error) {
	socket := strings.TrimPrefix(c.Endpoint, "unix://")
	conn, err := grpc.NewClient("passthrough:///"+socket,
		grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}),
		grpc.WithUnaryInterceptor(c.measure),
	)
	if err != nil {
		return nil, fmt.Errorf("driver %s at %s: %w", c.Driver, c.Endpoint, err)
	}
	return conn, nil
}

// measure tells Observe of a call, and has its error name the driver and the call: it
// ends in an event of a pod that says no more of them.
func (c *Client) measure(ctx context.Context, method string, request, answer any, conn *grpc.ClientConn,
	invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	begin := time.Now()
	err := invoke(ctx, method, request, answer, conn, options...)
	if c.Observe != nil {
		c.Observe(c.Driver, method, status.Code(err), time.Since(begin))
	}
	if err != nil {
		err = fmt.Errorf("%w (driver %s, call %s)", bounded(err), c.Driver, path.Base(method))
	}
	return err
}
