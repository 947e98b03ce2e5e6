package plugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	// optionsLimit and preferLimit are how long a plugin may take to say what it offers
	// and which devices it prefers, allocateLimit to make devices ready (upstream waits
	// for ever).
	optionsLimit  = 10 * time.Second
	preferLimit   = 10 * time.Second
	allocateLimit = 2 * time.Minute
	// preStartLimit is upstream's.
	preStartLimit = pluginapi.KubeletPreStartContainerRPCTimeoutInSecs * time.Second
	// maxMessage is the size of a message of a plugin, in bytes (upstream: 4 MiB).
	maxMessage = 4 << 20
	// maxError is how much of an error's text is shown, in bytes.
	maxError = 1 << 10
	// maxDevices is how many devices a plugin may have, maxPlugins how many resources
	// there may be.
	maxDevices = 1 << 16
	maxPlugins = 1024
)

// endpoint is a plugin that is connected.
type endpoint struct {
	path string
	conn *grpc.ClientConn
	pluginapi.DevicePluginClient
	options *pluginapi.DevicePluginOptions
	end     context.CancelFunc
}

type dialer = func(ctx context.Context) (net.Conn, error)

// connect asks a plugin what it offers, and takes it in place of the one of its name.
func (m *Manager) connect(ctx context.Context, name, path string, dial dialer) error {
	conn, err := grpc.NewClient("passthrough:///"+path,
		grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }),
	)
	if err != nil {
		return fmt.Errorf("device plugin %s at %s: %w", name, path, err)
	}
	e := &endpoint{path: path, conn: conn, DevicePluginClient: pluginapi.NewDevicePluginClient(conn)}
	ctx, cancel := context.WithTimeout(ctx, optionsLimit)
	defer cancel()
	// Plugins may register before they listen; then this is when they begin.
	e.options, err = e.GetDevicePluginOptions(ctx, &pluginapi.Empty{}, grpc.WaitForReady(true))
	if err != nil {
		_ = conn.Close()
		return fmt.Errorf("device plugin %s at %s: failed to get device plugin options: %w", name, path, bounded(err))
	}
	if err := m.install(name, e); err != nil {
		_ = conn.Close()
		return err
	}
	return nil
}

// follow reads a plugin's lists of devices until the stream or ctx ends.
func (m *Manager) follow(ctx context.Context, r *resource, e *endpoint) {
	defer e.conn.Close()
	stream, err := e.ListAndWatch(ctx, &pluginapi.Empty{})
	for err == nil {
		var list *pluginapi.ListAndWatchResponse
		if list, err = stream.Recv(); err != nil {
			break
		}
		if n := len(list.GetDevices()); n > maxDevices {
			err = fmt.Errorf("it has %d devices, at most %d are taken", n, maxDevices)
			break
		}
		m.heard(r, e, list.GetDevices())
	}
	e.end()
	m.lost(r, e, bounded(err))
}

// bounded is an error whose text may be the plugin's.
func bounded(err error) error {
	if err == nil || len(err.Error()) <= maxError {
		return err
	}
	return errors.New(strings.ToValidUTF8(err.Error()[:maxError], "") + "...")
}

func (e *endpoint) prefer(ctx context.Context, available, include []string, size int) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, preferLimit)
	defer cancel()
	answer, err := e.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{
		ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
			AvailableDeviceIDs:   available,
			MustIncludeDeviceIDs: include,
			AllocationSize:       int32(size),
		}},
	})
	if list := answer.GetContainerResponses(); len(list) > 0 {
		return list[0].GetDeviceIDs(), bounded(err)
	}
	return nil, bounded(err)
}

func (e *endpoint) allocate(ctx context.Context, ids []string) (*pluginapi.ContainerAllocateResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, allocateLimit)
	defer cancel()
	answer, err := e.Allocate(ctx, &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}},
	})
	if err != nil {
		return nil, bounded(err)
	}
	if n := len(answer.GetContainerResponses()); n != 1 {
		return nil, fmt.Errorf("it answers for %d containers, it was asked for one", n)
	}
	return answer.GetContainerResponses()[0], nil
}

func (e *endpoint) preStart(ctx context.Context, ids []string) error {
	ctx, cancel := context.WithTimeout(ctx, preStartLimit)
	defer cancel()
	_, err := e.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: ids})
	return bounded(err)
}
