package main

import (
	"context"
	"net/url"
	"time"

	clientmetrics "k8s.io/client-go/tools/metrics"
	criapi "k8s.io/cri-api/pkg/apis"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/metrics"
)

// counted counts what the pods ask of their runtime.
func (c containers) counted(counts *metrics.Agent) containers {
	c.brief = countedRuntime{c.brief, counts}
	c.images = countedImages{c.images, counts}
	if c.groups != nil {
		c.groups.Operations = counts.Cgroups
	}
	return c
}

// countedRuntime counts operations under the names that the kubelet gives them.
type countedRuntime struct {
	criapi.RuntimeService
	counts *metrics.Agent
}

func (r countedRuntime) RunPodSandbox(
	ctx context.Context, config *criv1.PodSandboxConfig, handler string,
) (id string, err error) {
	defer r.counts.Operation("run_podsandbox")(&err)
	return r.RuntimeService.RunPodSandbox(ctx, config, handler)
}

func (r countedRuntime) StopPodSandbox(ctx context.Context, id string) (err error) {
	defer r.counts.Operation("stop_podsandbox")(&err)
	return r.RuntimeService.StopPodSandbox(ctx, id)
}

func (r countedRuntime) RemovePodSandbox(ctx context.Context, id string) (err error) {
	defer r.counts.Operation("remove_podsandbox")(&err)
	return r.RuntimeService.RemovePodSandbox(ctx, id)
}

func (r countedRuntime) PodSandboxStatus(
	ctx context.Context, id string, verbose bool,
) (out *criv1.PodSandboxStatusResponse, err error) {
	defer r.counts.Operation("podsandbox_status")(&err)
	return r.RuntimeService.PodSandboxStatus(ctx, id, verbose)
}

func (r countedRuntime) ListPodSandbox(
	ctx context.Context, filter *criv1.PodSandboxFilter,
) (out []*criv1.PodSandbox, err error) {
	defer r.counts.Operation("list_podsandbox")(&err)
	return r.RuntimeService.ListPodSandbox(ctx, filter)
}

func (r countedRuntime) CreateContainer(
	ctx context.Context, sandbox string, config *criv1.ContainerConfig, pod *criv1.PodSandboxConfig,
) (id string, err error) {
	defer r.counts.Operation("create_container")(&err)
	return r.RuntimeService.CreateContainer(ctx, sandbox, config, pod)
}

func (r countedRuntime) StartContainer(ctx context.Context, id string) (err error) {
	defer r.counts.Operation("start_container")(&err)
	return r.RuntimeService.StartContainer(ctx, id)
}

func (r countedRuntime) StopContainer(ctx context.Context, id string, timeout int64) (err error) {
	defer r.counts.Operation("stop_container")(&err)
	return r.RuntimeService.StopContainer(ctx, id, timeout)
}

func (r countedRuntime) RemoveContainer(ctx context.Context, id string) (err error) {
	defer r.counts.Operation("remove_container")(&err)
	return r.RuntimeService.RemoveContainer(ctx, id)
}

func (r countedRuntime) ListContainers(
	ctx context.Context, filter *criv1.ContainerFilter,
) (out []*criv1.Container, err error) {
	defer r.counts.Operation("list_containers")(&err)
	return r.RuntimeService.ListContainers(ctx, filter)
}

func (r countedRuntime) ContainerStatus(
	ctx context.Context, id string, verbose bool,
) (out *criv1.ContainerStatusResponse, err error) {
	defer r.counts.Operation("container_status")(&err)
	return r.RuntimeService.ContainerStatus(ctx, id, verbose)
}

func (r countedRuntime) UpdateContainerResources(
	ctx context.Context, id string, resources *criv1.ContainerResources,
) (err error) {
	defer r.counts.Operation("update_container")(&err)
	return r.RuntimeService.UpdateContainerResources(ctx, id, resources)
}

func (r countedRuntime) ExecSync(
	ctx context.Context, id string, command []string, timeout time.Duration,
) (stdout, stderr []byte, err error) {
	defer r.counts.Operation("exec_sync")(&err)
	return r.RuntimeService.ExecSync(ctx, id, command, timeout)
}

// countedImages counts operations on images.
type countedImages struct {
	criapi.ImageManagerService
	counts *metrics.Agent
}

func (i countedImages) ListImages(ctx context.Context, filter *criv1.ImageFilter) (out []*criv1.Image, err error) {
	defer i.counts.Operation("list_images")(&err)
	return i.ImageManagerService.ListImages(ctx, filter)
}

func (i countedImages) ImageStatus(
	ctx context.Context, image *criv1.ImageSpec, verbose bool,
) (out *criv1.ImageStatusResponse, err error) {
	defer i.counts.Operation("image_status")(&err)
	return i.ImageManagerService.ImageStatus(ctx, image, verbose)
}

func (i countedImages) PullImage(
	ctx context.Context, image *criv1.ImageSpec, auth *criv1.AuthConfig, pod *criv1.PodSandboxConfig,
) (ref string, err error) {
	defer i.counts.Operation("pull_image")(&err)
	return i.ImageManagerService.PullImage(ctx, image, auth, pod)
}

func (i countedImages) RemoveImage(ctx context.Context, image *criv1.ImageSpec) (err error) {
	defer i.counts.Operation("remove_image")(&err)
	return i.ImageManagerService.RemoveImage(ctx, image)
}

// requests counts the requests of this process's clients.
type requests struct{ counts *metrics.Agent }

// countRequests has all clients of the process counted from now on.
func countRequests(counts *metrics.Agent) {
	r := requests{counts}
	clientmetrics.Register(clientmetrics.RegisterOpts{RequestResult: r, RequestLatency: r})
}

// Increment implements metrics.ResultMetric.
func (r requests) Increment(_ context.Context, code, method, host string) {
	r.counts.Requests.Inc(code, method, host)
}

// Observe implements metrics.LatencyMetric.
func (r requests) Observe(_ context.Context, verb string, u url.URL, latency time.Duration) {
	r.counts.RequestDurations.Observe(latency, verb, u.Host)
}
