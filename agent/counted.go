package main

import (
	"context"
	"net/url"
	"time"

	clientmetrics "k8s.io/client-go/tools/metrics"
	criapi "k8s.io/cri-api/pkg/apis"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/metrics"
	"github.com/shoal-project/shoal/agent/tracing"
)

// counted counts what the pods ask of their runtime, and tells spans of it; the
// client of an outside runtime makes its own.
func (c containers) counted(counts *metrics.Agent, spans *tracing.Tracer) containers {
	if c.builtin == nil {
		spans = nil
	}
	c.brief = countedRuntime{c.brief, asked{counts, spans, "runtime.v1.RuntimeService"}, newOwnUsers()}
	c.images = countedImages{c.images, asked{counts, spans, "runtime.v1.ImageService"}}
	if c.groups != nil {
		c.groups.Operations = counts.Cgroups
	}
	if c.outdated {
		counts.LosesSupport = runtimeConfigNeeded
	}
	return c
}

// runtimeConfigNeeded is upstream's release whose kubelet takes no runtime that does not tell who
// makes control groups.
const runtimeConfigNeeded = "1.37.0"

// asked is who hears of requests to a service.
type asked struct {
	counts  *metrics.Agent
	spans   *tracing.Tracer // nil: nobody
	service string
}

// begin begins a request; operation is its name in metrics.
func (a asked) begin(ctx context.Context, operation, method string) (context.Context, func(*error)) {
	counted := a.counts.Operation(operation)
	if a.spans == nil {
		return ctx, counted
	}
	ctx, end := a.spans.Call(ctx, a.service, method)
	return ctx, func(err *error) {
		end(err)
		counted(err)
	}
}

// countedRuntime counts operations under the names that the kubelet gives them.
type countedRuntime struct {
	criapi.RuntimeService
	asked
	users *ownUsers
}

func (r countedRuntime) RunPodSandbox(
	ctx context.Context, config *criv1.PodSandboxConfig, handler string,
) (id string, err error) {
	ctx, end := r.begin(ctx, "run_podsandbox", "RunPodSandbox")
	defer end(&err)
	if !ofUsers(config) {
		return r.RuntimeService.RunPodSandbox(ctx, config, handler)
	}
	r.counts.UserNamespaces.Inc()
	if id, err = r.RuntimeService.RunPodSandbox(ctx, config, handler); err != nil {
		r.counts.UserNamespaceErrors.Inc()
		return "", err
	}
	r.users.began(id)
	return id, nil
}

func (r countedRuntime) StopPodSandbox(ctx context.Context, id string) (err error) {
	ctx, end := r.begin(ctx, "stop_podsandbox", "StopPodSandbox")
	defer end(&err)
	return r.RuntimeService.StopPodSandbox(ctx, id)
}

func (r countedRuntime) RemovePodSandbox(ctx context.Context, id string) (err error) {
	ctx, end := r.begin(ctx, "remove_podsandbox", "RemovePodSandbox")
	defer end(&err)
	if err = r.RuntimeService.RemovePodSandbox(ctx, id); err == nil {
		r.users.removed(id)
	}
	return err
}

func (r countedRuntime) PodSandboxStatus(
	ctx context.Context, id string, verbose bool,
) (out *criv1.PodSandboxStatusResponse, err error) {
	ctx, end := r.begin(ctx, "podsandbox_status", "PodSandboxStatus")
	defer end(&err)
	return r.RuntimeService.PodSandboxStatus(ctx, id, verbose)
}

func (r countedRuntime) ListPodSandbox(
	ctx context.Context, filter *criv1.PodSandboxFilter,
) (out []*criv1.PodSandbox, err error) {
	ctx, end := r.begin(ctx, "list_podsandbox", "ListPodSandbox")
	defer end(&err)
	return r.RuntimeService.ListPodSandbox(ctx, filter)
}

func (r countedRuntime) CreateContainer(
	ctx context.Context, sandbox string, config *criv1.ContainerConfig, pod *criv1.PodSandboxConfig,
) (id string, err error) {
	ctx, end := r.begin(ctx, "create_container", "CreateContainer")
	defer end(&err)
	id, err = r.RuntimeService.CreateContainer(ctx, sandbox, config, pod)
	if ctx.Err() == nil && r.users.made(sandbox, id, err) {
		r.counts.UserNamespaceErrors.Inc()
	}
	return id, err
}

func (r countedRuntime) StartContainer(ctx context.Context, id string) (err error) {
	ctx, end := r.begin(ctx, "start_container", "StartContainer")
	defer end(&err)
	err = r.RuntimeService.StartContainer(ctx, id)
	if r.users.started(id, err) && ctx.Err() == nil {
		r.counts.UserNamespaceErrors.Inc()
	}
	return err
}

func (r countedRuntime) StopContainer(ctx context.Context, id string, timeout int64) (err error) {
	ctx, end := r.begin(ctx, "stop_container", "StopContainer")
	defer end(&err)
	return r.RuntimeService.StopContainer(ctx, id, timeout)
}

func (r countedRuntime) RemoveContainer(ctx context.Context, id string) (err error) {
	ctx, end := r.begin(ctx, "remove_container", "RemoveContainer")
	defer end(&err)
	return r.RuntimeService.RemoveContainer(ctx, id)
}

func (r countedRuntime) ListContainers(
	ctx context.Context, filter *criv1.ContainerFilter,
) (out []*criv1.Container, err error) {
	ctx, end := r.begin(ctx, "list_containers", "ListContainers")
	defer end(&err)
	return r.RuntimeService.ListContainers(ctx, filter)
}

func (r countedRuntime) ContainerStatus(
	ctx context.Context, id string, verbose bool,
) (out *criv1.ContainerStatusResponse, err error) {
	ctx, end := r.begin(ctx, "container_status", "ContainerStatus")
	defer end(&err)
	return r.RuntimeService.ContainerStatus(ctx, id, verbose)
}

func (r countedRuntime) UpdateContainerResources(
	ctx context.Context, id string, resources *criv1.ContainerResources,
) (err error) {
	ctx, end := r.begin(ctx, "update_container", "UpdateContainerResources")
	defer end(&err)
	return r.RuntimeService.UpdateContainerResources(ctx, id, resources)
}

func (r countedRuntime) ExecSync(
	ctx context.Context, id string, command []string, timeout time.Duration,
) (stdout, stderr []byte, err error) {
	ctx, end := r.begin(ctx, "exec_sync", "ExecSync")
	defer end(&err)
	return r.RuntimeService.ExecSync(ctx, id, command, timeout)
}

func (r countedRuntime) CheckpointContainer(ctx context.Context, req *criv1.CheckpointContainerRequest) (err error) {
	ctx, end := r.begin(ctx, "checkpoint_container", "CheckpointContainer")
	defer end(&err)
	return r.RuntimeService.CheckpointContainer(ctx, req)
}

// countedImages counts operations on images.
type countedImages struct {
	criapi.ImageManagerService
	asked
}

func (i countedImages) ListImages(ctx context.Context, filter *criv1.ImageFilter) (out []*criv1.Image, err error) {
	ctx, end := i.begin(ctx, "list_images", "ListImages")
	defer end(&err)
	return i.ImageManagerService.ListImages(ctx, filter)
}

func (i countedImages) ImageStatus(
	ctx context.Context, image *criv1.ImageSpec, verbose bool,
) (out *criv1.ImageStatusResponse, err error) {
	ctx, end := i.begin(ctx, "image_status", "ImageStatus")
	defer end(&err)
	return i.ImageManagerService.ImageStatus(ctx, image, verbose)
}

func (i countedImages) PullImage(
	ctx context.Context, image *criv1.ImageSpec, auth *criv1.AuthConfig, pod *criv1.PodSandboxConfig,
) (ref string, err error) {
	ctx, end := i.begin(ctx, "pull_image", "PullImage")
	defer end(&err)
	return i.ImageManagerService.PullImage(ctx, image, auth, pod)
}

func (i countedImages) RemoveImage(ctx context.Context, image *criv1.ImageSpec) (err error) {
	ctx, end := i.begin(ctx, "remove_image", "RemoveImage")
	defer end(&err)
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
