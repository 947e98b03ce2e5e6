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
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Names and versions that clients see.
const (
	runtimeName       = "shoal"
	runtimeVersion    = "0.1.0"
	runtimeAPIVersion = "v1"
	kubeAPIVersion    = "0.1.0" // of the kubelet's runtime API, fixed upstream
)

// Version tells name and versions.
func (r *Runtime) Version(context.Context, string) (*criv1.VersionResponse, error) {
	return &criv1.VersionResponse{
		Version: kubeAPIVersion, RuntimeName: runtimeName, RuntimeVersion: runtimeVersion,
		RuntimeApiVersion: runtimeAPIVersion,
	}, nil
}

// Status tells whether pods can be run and connected, and what can be used.
func (r *Runtime) Status(ctx context.Context, verbose bool) (*criv1.StatusResponse, error) {
	network := &criv1.RuntimeCondition{Type: criv1.NetworkReady, Status: true}
	if err := r.cfg.Network.Status(ctx); err != nil {
		network.Status, network.Reason = false, "NetworkPluginNotReady"
		network.Message = "Network plugin returns error: " + err.Error()
	}
	resp := &criv1.StatusResponse{
		Status: &criv1.RuntimeStatus{Conditions: []*criv1.RuntimeCondition{
			{Type: criv1.RuntimeReady, Status: true}, network,
		}},
		Features: &criv1.RuntimeFeatures{SupplementalGroupsPolicy: true},
	}
	for name, rt := range r.cfg.Runtimes {
		resp.RuntimeHandlers = append(resp.RuntimeHandlers, &criv1.RuntimeHandler{
			Name: name,
			Features: &criv1.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: rt.Direct(),
				UserNamespaces: rt.UserNamespaces()},
		})
	}
	if verbose {
		info, err := json.Marshal(
			map[string]any{"runtimes": r.cfg.Runtimes, "conmon": r.cfg.Conmon, "cgroups": r.cgroups.Mode(),
				"dataDir": r.cfg.DataDir, "stateDir": r.cfg.RunDir})
		if err != nil {
			return nil, err
		}
		resp.Info = map[string]string{"config": string(info)}
	}
	return resp, nil
}

// RuntimeConfig tells the control group driver.
func (r *Runtime) RuntimeConfig(context.Context) (*criv1.RuntimeConfigResponse, error) {
	driver := criv1.CgroupDriver_CGROUPFS
	if r.cfg.Driver == cgroup.Systemd {
		driver = criv1.CgroupDriver_SYSTEMD
	}
	return &criv1.RuntimeConfigResponse{Linux: &criv1.LinuxRuntimeConfiguration{CgroupDriver: driver}}, nil
}

// UpdateRuntimeConfig takes the node's pod CIDR. The network knows it by
// itself, so there is nothing to do.
func (r *Runtime) UpdateRuntimeConfig(context.Context, *criv1.RuntimeConfig) error { return nil }

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
		{errdefs.IsAlreadyExists(err), codes.AlreadyExists},
		{errdefs.IsFailedPrecondition(err), codes.FailedPrecondition},
		{errors.Is(err, context.DeadlineExceeded), codes.DeadlineExceeded},
		{errors.Is(err, context.Canceled), codes.Canceled},
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
