package hollow

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// errHollow answers what needs processes.
var errHollow = status.Error(codes.Unimplemented, "a hollow node runs no processes")

// Exec is not served.
func (r *Runtime) Exec(context.Context, *criv1.ExecRequest) (*criv1.ExecResponse, error) {
	return nil, errHollow
}

// Attach is not served.
func (r *Runtime) Attach(context.Context, *criv1.AttachRequest) (*criv1.AttachResponse, error) {
	return nil, errHollow
}

// PortForward is not served.
func (r *Runtime) PortForward(context.Context, *criv1.PortForwardRequest) (*criv1.PortForwardResponse, error) {
	return nil, errHollow
}

// ReopenContainerLog does nothing: there are no logs.
func (r *Runtime) ReopenContainerLog(context.Context, string) error { return nil }

// CheckpointContainer is not served.
func (r *Runtime) CheckpointContainer(context.Context, *criv1.CheckpointContainerRequest) error {
	return errHollow
}

// UpdatePodSandboxResources takes everything.
func (r *Runtime) UpdatePodSandboxResources(context.Context,
	*criv1.UpdatePodSandboxResourcesRequest) (*criv1.UpdatePodSandboxResourcesResponse, error) {
	return &criv1.UpdatePodSandboxResourcesResponse{}, nil
}

// ContainerStats is not served.
func (r *Runtime) ContainerStats(context.Context, string) (*criv1.ContainerStats, error) {
	return nil, errHollow
}

// ListContainerStats lists none.
func (r *Runtime) ListContainerStats(context.Context, *criv1.ContainerStatsFilter) ([]*criv1.ContainerStats, error) {
	return nil, nil
}

// PodSandboxStats is not served.
func (r *Runtime) PodSandboxStats(context.Context, string) (*criv1.PodSandboxStats, error) {
	return nil, errHollow
}

// ListPodSandboxStats lists none.
func (r *Runtime) ListPodSandboxStats(context.Context, *criv1.PodSandboxStatsFilter) ([]*criv1.PodSandboxStats, error) {
	return nil, nil
}

// ListMetricDescriptors lists none.
func (r *Runtime) ListMetricDescriptors(context.Context) ([]*criv1.MetricDescriptor, error) {
	return nil, nil
}

// ListPodSandboxMetrics lists none.
func (r *Runtime) ListPodSandboxMetrics(context.Context) ([]*criv1.PodSandboxMetrics, error) {
	return nil, nil
}

// UpdateRuntimeConfig takes everything.
func (r *Runtime) UpdateRuntimeConfig(context.Context, *criv1.RuntimeConfig) error { return nil }

// RuntimeConfig tells the control group driver.
func (r *Runtime) RuntimeConfig(context.Context) (*criv1.RuntimeConfigResponse, error) {
	return &criv1.RuntimeConfigResponse{
		Linux: &criv1.LinuxRuntimeConfiguration{CgroupDriver: criv1.CgroupDriver_CGROUPFS}}, nil
}

// Close does nothing.
func (r *Runtime) Close(context.Context) error { return nil }
