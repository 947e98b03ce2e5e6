package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/shoal-project/shoal/agent/cgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Names and versions that clients see.
const (
	runtimeName       = "shoal"
	runtimeVersion    = "0.1.0"
	runtimeAPIVersion = "v1"
	kubeAPIVersion    = "0.1.0" // of the kubelet's runtime API, fixed upstream
)

// Version tells name and versions.
func (r *Runtime) Version(context.Context, string) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{
		Version: kubeAPIVersion, RuntimeName: runtimeName, RuntimeVersion: runtimeVersion, RuntimeApiVersion: runtimeAPIVersion,
	}, nil
}

// Status tells whether pods can be run and connected, and what can be used.
func (r *Runtime) Status(_ context.Context, verbose bool) (*cri.StatusResponse, error) {
	network := &cri.RuntimeCondition{Type: cri.NetworkReady, Status: true}
	if err := r.cfg.Network.Status(); err != nil {
		network.Status, network.Reason = false, "NetworkPluginNotReady"
		network.Message = "Network plugin returns error: " + err.Error()
	}
	resp := &cri.StatusResponse{
		Status: &cri.RuntimeStatus{Conditions: []*cri.RuntimeCondition{
			{Type: cri.RuntimeReady, Status: true}, network,
		}},
		Features: &cri.RuntimeFeatures{SupplementalGroupsPolicy: true},
	}
	for name, rt := range r.cfg.Runtimes {
		resp.RuntimeHandlers = append(resp.RuntimeHandlers, &cri.RuntimeHandler{
			Name: name, Features: &cri.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: rt.Direct(), UserNamespaces: rt.UserNamespaces()},
		})
	}
	if verbose {
		info, err := json.Marshal(map[string]any{"runtimes": r.cfg.Runtimes, "conmon": r.cfg.Conmon, "cgroups": r.cgroups.Mode(), "dataDir": r.cfg.DataDir, "stateDir": r.cfg.RunDir})
		if err != nil {
			return nil, err
		}
		resp.Info = map[string]string{"config": string(info)}
	}
	return resp, nil
}

// RuntimeConfig tells the control group driver.
func (r *Runtime) RuntimeConfig(context.Context) (*cri.RuntimeConfigResponse, error) {
	driver := cri.CgroupDriver_CGROUPFS
	if r.cfg.Driver == cgroup.Systemd {
		driver = cri.CgroupDriver_SYSTEMD
	}
	return &cri.RuntimeConfigResponse{Linux: &cri.LinuxRuntimeConfiguration{CgroupDriver: driver}}, nil
}

// UpdateRuntimeConfig takes the node's pod CIDR. The network knows it by
// itself, so there is nothing to do.
func (r *Runtime) UpdateRuntimeConfig(context.Context, *cri.RuntimeConfig) error { return nil }

// CheckpointContainer is not offered.
func (r *Runtime) CheckpointContainer(context.Context, *cri.CheckpointContainerRequest) error {
	return status.Error(codes.Unimplemented, "method CheckpointContainer not implemented")
}

// toStatus gives errors their gRPC code, in process as on the socket, so that
// callers and users read the same text from both.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	if s, ok := status.FromError(err); ok && s.Code() != codes.Unknown {
		return err
	}
	code := codes.Unknown
	for _, e := range []struct {
		is   bool
		code codes.Code
	}{
		{errdefs.IsNotFound(err), codes.NotFound}, {errdefs.IsInvalidArgument(err), codes.InvalidArgument},
		{errdefs.IsAlreadyExists(err), codes.AlreadyExists}, {errdefs.IsFailedPrecondition(err), codes.FailedPrecondition},
		{errors.Is(err, context.DeadlineExceeded), codes.DeadlineExceeded}, {errors.Is(err, context.Canceled), codes.Canceled},
		{errdefs.IsUnavailable(err), codes.Unavailable}, {errdefs.IsNotImplemented(err), codes.Unimplemented},
	} {
		if e.is {
			code = e.code
			break
		}
	}
	return status.Error(code, err.Error())
}

func badRequest(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalidArgument)...)
}
