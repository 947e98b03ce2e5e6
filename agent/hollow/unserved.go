package hollow

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// errHollow answers what needs processes.
var errHollow = status.Error(codes.Unimplemented, "a hollow node runs no processes")

// Exec is not served.
func (r *Runtime) Exec(context.Context, *cri.ExecRequest) (*cri.ExecResponse, error) {
	return nil, errHollow
}

// Attach is not served.
func (r *Runtime) Attach(context.Context, *cri.AttachRequest) (*cri.AttachResponse, error) {
	return nil, errHollow
}

// PortForward is not served.
func (r *Runtime) PortForward(context.Context, *cri.PortForwardRequest) (*cri.PortForwardResponse, error) {
	return nil, errHollow
}

// ReopenContainerLog does nothing: there are no logs.
func (r *Runtime) ReopenContainerLog(context.Context, string) error { return nil }

// CheckpointContainer is not served.
func (r *Runtime) CheckpointContainer(context.Context, *cri.CheckpointContainerRequest) error {
	return errHollow
}

// UpdatePodSandboxResources takes everything.
func (r *Runtime) UpdatePodSandboxResources(context.Context, *cri.UpdatePodSandboxResourcesRequest) (*cri.UpdatePodSandboxResourcesResponse, error) {
	return &cri.UpdatePodSandboxResourcesResponse{}, nil
}

// ContainerStats is not served.
func (r *Runtime) ContainerStats(context.Context, string) (*cri.ContainerStats, error) {
	return nil, errHollow
}

// ListContainerStats lists none.
func (r *Runtime) ListContainerStats(context.Context, *cri.ContainerStatsFilter) ([]*cri.ContainerStats, error) {
	return nil, nil
}

// PodSandboxStats is not served.
func (r *Runtime) PodSandboxStats(context.Context, string) (*cri.PodSandboxStats, error) {
	return nil, errHollow
}

// ListPodSandboxStats lists none.
func (r *Runtime) ListPodSandboxStats(context.Context, *cri.PodSandboxStatsFilter) ([]*cri.PodSandboxStats, error) {
	return nil, nil
}

// ListMetricDescriptors lists none.
func (r *Runtime) ListMetricDescriptors(context.Context) ([]*cri.MetricDescriptor, error) {
	return nil, nil
}

// ListPodSandboxMetrics lists none.
func (r *Runtime) ListPodSandboxMetrics(context.Context) ([]*cri.PodSandboxMetrics, error) {
	return nil, nil
}

// UpdateRuntimeConfig takes everything.
func (r *Runtime) UpdateRuntimeConfig(context.Context, *cri.RuntimeConfig) error { return nil }

// RuntimeConfig tells the control group driver.
func (r *Runtime) RuntimeConfig(context.Context) (*cri.RuntimeConfigResponse, error) {
	return &cri.RuntimeConfigResponse{Linux: &cri.LinuxRuntimeConfiguration{CgroupDriver: cri.CgroupDriver_CGROUPFS}}, nil
}

// Close does nothing.
func (r *Runtime) Close(context.Context) error { return nil }
