package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/shoal-project/shoal/agent/beneath"
)

const (
	// socketName is the agent's socket, the kubelet's name of it.
	socketName = "kubelet.sock"
	// maxRequest is the size of a registration, in bytes.
	maxRequest = 64 << 10
	// handshake is how long a connection may take to become one of gRPC.
	handshake = 10 * time.Second
)

// Run serves the registration of plugins until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	defer m.close()
	if err := os.MkdirAll(m.Dir, 0o750); err != nil {
		return err
	}
	dir, err := beneath.Open(m.Dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := removeSockets(dir); err != nil {
		return fmt.Errorf("sockets of an earlier run in %s: %w", m.Dir, err)
	}
	l, err := dir.Listen(socketName)
	if err != nil {
		return err
	}
	s := grpc.NewServer(grpc.MaxRecvMsgSize(maxRequest), grpc.MaxConcurrentStreams(16), grpc.ConnectionTimeout(handshake),
		grpc.WaitForHandlers(true))
	pluginapi.RegisterRegistrationServer(s, &registry{m: m, dir: dir})
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		_ = dir.Root.Remove(socketName)
		s.Stop()
		err = <-ended
	}
	if errors.Is(err, grpc.ErrServerStopped) {
		err = nil
	}
	return err
}

// removeSockets removes those of an earlier run. Plugins watch for that, and register
// again.
func removeSockets(dir *beneath.Dir) error {
	names, err := dir.Names(".")
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		if st, err := dir.Root.Lstat(name); err != nil || st.Mode().Type() != fs.ModeSocket {
			continue
		}
		if err := dir.Root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// registry is what plugins call.
type registry struct {
	pluginapi.UnimplementedRegistrationServer
	m   *Manager
	dir *beneath.Dir
}

// Register takes a plugin whose socket lies in the agent's directory.
func (s *registry) Register(ctx context.Context, r *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	err := checkPlugin(r.GetResourceName(), []string{r.GetVersion()})
	name := r.GetEndpoint()
	switch {
	case err != nil:
	case name == "" || name == "." || name == ".." || name != filepath.Base(name) || name == socketName:
		err = fmt.Errorf("endpoint %q: it has to be the name of the plugin's socket in %s", name, s.m.Dir)
	default:
		err = s.m.connect(ctx, r.GetResourceName(), filepath.Join(s.m.Dir, name),
			func(ctx context.Context) (net.Conn, error) { return s.dir.Dial(ctx, name) })
	}
	if err != nil {
		s.m.Log.Warn("device plugin is not registered", "resource", r.GetResourceName(), "endpoint", name, "err", err)
		return nil, err
	}
	return &pluginapi.Empty{}, nil
}

// Register takes a plugin that was found by its socket in plugins_registry; name is its
// resource.
func (m *Manager) Register(ctx context.Context, name, endpoint string, versions []string) error {
	if err := checkPlugin(name, versions); err != nil {
		return err
	}
	return m.connect(ctx, name, endpoint, func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", endpoint)
	})
}

// checkPlugin tells why a plugin cannot be taken.
func checkPlugin(name string, versions []string) error {
	if !slices.ContainsFunc(versions, func(v string) bool {
		return slices.Contains(pluginapi.SupportedVersions[:], v)
	}) {
		return fmt.Errorf("requested API version %q is not supported by kubelet. Supported version is %q",
			versions, pluginapi.SupportedVersions)
	}
	if why := notExtended(name); why != "" {
		return fmt.Errorf("the ResourceName %q is invalid: %s", name, why)
	}
	return nil
}

// notExtended tells why a name is none of an extended resource, "" where it is.
func notExtended(name string) string {
	domain, _, qualified := strings.Cut(name, "/")
	switch {
	case !qualified:
		return "it has to be as in vendor.example/device"
	case strings.Contains(domain+"/", corev1.ResourceDefaultNamespacePrefix):
		return "the domain is Kubernetes' own"
	case strings.HasPrefix(name, corev1.DefaultResourceRequestsPrefix):
		return "it begins with " + corev1.DefaultResourceRequestsPrefix
	}
	// It has to be a name in a ResourceQuota too.
	return strings.Join(validation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+name), "; ")
}
