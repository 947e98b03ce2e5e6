package runtime

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	utilexec "k8s.io/utils/exec"
)

// service is the runtime on the wire: each method unpacks a request and
// packs an answer, nothing else.
type service struct {
	criv1.UnimplementedRuntimeServiceServer
	r *Runtime
}

func (s *service) Version(ctx context.Context, q *criv1.VersionRequest) (*criv1.VersionResponse, error) {
	return s.r.Version(ctx, q.GetVersion())
}

func (s *service) RunPodSandbox(ctx context.Context, q *criv1.RunPodSandboxRequest) (*criv1.RunPodSandboxResponse, error) {
	id, err := s.r.RunPodSandbox(ctx, q.GetConfig(), q.GetRuntimeHandler())
	return &criv1.RunPodSandboxResponse{PodSandboxId: id}, err
}

func (s *service) StopPodSandbox(ctx context.Context,
	q *criv1.StopPodSandboxRequest) (*criv1.StopPodSandboxResponse, error) {
	return &criv1.StopPodSandboxResponse{}, s.r.StopPodSandbox(ctx, q.GetPodSandboxId())
}

func (s *service) RemovePodSandbox(ctx context.Context,
	q *criv1.RemovePodSandboxRequest) (*criv1.RemovePodSandboxResponse, error) {
	return &criv1.RemovePodSandboxResponse{}, s.r.RemovePodSandbox(ctx, q.GetPodSandboxId())
}

func (s *service) PodSandboxStatus(ctx context.Context,
	q *criv1.PodSandboxStatusRequest) (*criv1.PodSandboxStatusResponse, error) {
	return s.r.PodSandboxStatus(ctx, q.GetPodSandboxId(), q.GetVerbose())
}

func (s *service) ListPodSandbox(ctx context.Context,
	q *criv1.ListPodSandboxRequest) (*criv1.ListPodSandboxResponse, error) {
	items, err := s.r.ListPodSandbox(ctx, q.GetFilter())
	return &criv1.ListPodSandboxResponse{Items: items}, err
}

func (s *service) CreateContainer(ctx context.Context,
	q *criv1.CreateContainerRequest) (*criv1.CreateContainerResponse, error) {
	id, err := s.r.CreateContainer(ctx, q.GetPodSandboxId(), q.GetConfig(), q.GetSandboxConfig())
	return &criv1.CreateContainerResponse{ContainerId: id}, err
}

func (s *service) StartContainer(ctx context.Context,
	q *criv1.StartContainerRequest) (*criv1.StartContainerResponse, error) {
	return &criv1.StartContainerResponse{}, s.r.StartContainer(ctx, q.GetContainerId())
}

func (s *service) StopContainer(ctx context.Context, q *criv1.StopContainerRequest) (*criv1.StopContainerResponse, error) {
	return &criv1.StopContainerResponse{}, s.r.StopContainer(ctx, q.GetContainerId(), q.GetTimeout())
}

func (s *service) RemoveContainer(ctx context.Context,
	q *criv1.RemoveContainerRequest) (*criv1.RemoveContainerResponse, error) {
	return &criv1.RemoveContainerResponse{}, s.r.RemoveContainer(ctx, q.GetContainerId())
}

func (s *service) ListContainers(ctx context.Context,
	q *criv1.ListContainersRequest) (*criv1.ListContainersResponse, error) {
	items, err := s.r.ListContainers(ctx, q.GetFilter())
	return &criv1.ListContainersResponse{Containers: items}, err
}

func (s *service) ContainerStatus(ctx context.Context,
	q *criv1.ContainerStatusRequest) (*criv1.ContainerStatusResponse, error) {
	return s.r.ContainerStatus(ctx, q.GetContainerId(), q.GetVerbose())
}

func (s *service) UpdateContainerResources(ctx context.Context,
	q *criv1.UpdateContainerResourcesRequest) (*criv1.UpdateContainerResourcesResponse, error) {
	err := s.r.UpdateContainerResources(ctx, q.GetContainerId(), &criv1.ContainerResources{Linux: q.GetLinux()})
	return &criv1.UpdateContainerResourcesResponse{}, err
}

func (s *service) ReopenContainerLog(ctx context.Context,
	q *criv1.ReopenContainerLogRequest) (*criv1.ReopenContainerLogResponse, error) {
	return &criv1.ReopenContainerLogResponse{}, s.r.ReopenContainerLog(ctx, q.GetContainerId())
}

func (s *service) ExecSync(ctx context.Context, q *criv1.ExecSyncRequest) (*criv1.ExecSyncResponse, error) {
	out, errOut, err := s.r.ExecSync(ctx, q.GetContainerId(), q.GetCmd(), time.Duration(q.GetTimeout())*time.Second)
	var exit utilexec.CodeExitError
	if errors.As(err, &exit) {
		err = nil
	}
	return &criv1.ExecSyncResponse{Stdout: out, Stderr: errOut, ExitCode: int32(exit.Code)}, err
}

func (s *service) Exec(ctx context.Context, q *criv1.ExecRequest) (*criv1.ExecResponse, error) {
	return s.r.Exec(ctx, q)
}

func (s *service) Attach(ctx context.Context, q *criv1.AttachRequest) (*criv1.AttachResponse, error) {
	return s.r.Attach(ctx, q)
}

func (s *service) PortForward(ctx context.Context, q *criv1.PortForwardRequest) (*criv1.PortForwardResponse, error) {
	return s.r.PortForward(ctx, q)
}

func (s *service) ContainerStats(ctx context.Context,
	q *criv1.ContainerStatsRequest) (*criv1.ContainerStatsResponse, error) {
	st, err := s.r.ContainerStats(ctx, q.GetContainerId())
	return &criv1.ContainerStatsResponse{Stats: st}, err
}

func (s *service) ListContainerStats(ctx context.Context,
	q *criv1.ListContainerStatsRequest) (*criv1.ListContainerStatsResponse, error) {
	st, err := s.r.ListContainerStats(ctx, q.GetFilter())
	return &criv1.ListContainerStatsResponse{Stats: st}, err
}

func (s *service) PodSandboxStats(ctx context.Context,
	q *criv1.PodSandboxStatsRequest) (*criv1.PodSandboxStatsResponse, error) {
	st, err := s.r.PodSandboxStats(ctx, q.GetPodSandboxId())
	return &criv1.PodSandboxStatsResponse{Stats: st}, err
}

func (s *service) ListPodSandboxStats(ctx context.Context,
	q *criv1.ListPodSandboxStatsRequest) (*criv1.ListPodSandboxStatsResponse, error) {
	st, err := s.r.ListPodSandboxStats(ctx, q.GetFilter())
	return &criv1.ListPodSandboxStatsResponse{Stats: st}, err
}

func (s *service) UpdateRuntimeConfig(ctx context.Context,
	q *criv1.UpdateRuntimeConfigRequest) (*criv1.UpdateRuntimeConfigResponse, error) {
	return &criv1.UpdateRuntimeConfigResponse{}, s.r.UpdateRuntimeConfig(ctx, q.GetRuntimeConfig())
}

func (s *service) Status(ctx context.Context, q *criv1.StatusRequest) (*criv1.StatusResponse, error) {
	return s.r.Status(ctx, q.GetVerbose())
}

func (s *service) CheckpointContainer(ctx context.Context,
	q *criv1.CheckpointContainerRequest) (*criv1.CheckpointContainerResponse, error) {
	return &criv1.CheckpointContainerResponse{}, s.r.CheckpointContainer(ctx, q)
}

// GetContainerEvents answers with its headers as soon as events are collected,
// so that a client that has them misses nothing that it does from then on.
func (s *service) GetContainerEvents(_ *criv1.GetEventsRequest,
	out grpc.ServerStreamingServer[criv1.ContainerEventResponse]) error {
	ctx, cancel := context.WithCancel(out.Context())
	defer cancel()
	ch := make(chan *criv1.ContainerEventResponse)
	ended := make(chan error, 1)
	connected := func(criv1.RuntimeService_GetContainerEventsClient) {
		_ = out.SendHeader(nil) // a client that is gone ends ctx
	}
	go func() { ended <- s.r.GetContainerEvents(ctx, ch, connected) }()
	for {
		select {
		case ev := <-ch:
			if err := out.Send(ev); err != nil {
				return err
			}
		case err := <-ended:
			return err
		}
	}
}

func (s *service) ListMetricDescriptors(ctx context.Context,
	_ *criv1.ListMetricDescriptorsRequest) (*criv1.ListMetricDescriptorsResponse, error) {
	d, err := s.r.ListMetricDescriptors(ctx)
	return &criv1.ListMetricDescriptorsResponse{Descriptors: d}, err
}

func (s *service) ListPodSandboxMetrics(ctx context.Context,
	_ *criv1.ListPodSandboxMetricsRequest) (*criv1.ListPodSandboxMetricsResponse, error) {
	m, err := s.r.ListPodSandboxMetrics(ctx)
	return &criv1.ListPodSandboxMetricsResponse{PodMetrics: m}, err
}

func (s *service) RuntimeConfig(ctx context.Context, _ *criv1.RuntimeConfigRequest) (*criv1.RuntimeConfigResponse, error) {
	return s.r.RuntimeConfig(ctx)
}

func (s *service) UpdatePodSandboxResources(ctx context.Context,
	q *criv1.UpdatePodSandboxResourcesRequest) (*criv1.UpdatePodSandboxResourcesResponse, error) {
	return s.r.UpdatePodSandboxResources(ctx, q)
}

// imageService is the image service on the wire.
type imageService struct {
	criv1.UnimplementedImageServiceServer
	r *Runtime
}

func (s *imageService) ListImages(ctx context.Context, q *criv1.ListImagesRequest) (*criv1.ListImagesResponse, error) {
	images, err := s.r.ListImages(ctx, q.GetFilter())
	return &criv1.ListImagesResponse{Images: images}, err
}

func (s *imageService) ImageStatus(ctx context.Context, q *criv1.ImageStatusRequest) (*criv1.ImageStatusResponse, error) {
	return s.r.ImageStatus(ctx, q.GetImage(), q.GetVerbose())
}

func (s *imageService) PullImage(ctx context.Context, q *criv1.PullImageRequest) (*criv1.PullImageResponse, error) {
	ref, err := s.r.PullImage(ctx, q.GetImage(), q.GetAuth(), q.GetSandboxConfig())
	return &criv1.PullImageResponse{ImageRef: ref}, err
}

func (s *imageService) RemoveImage(ctx context.Context, q *criv1.RemoveImageRequest) (*criv1.RemoveImageResponse, error) {
	return &criv1.RemoveImageResponse{}, s.r.RemoveImage(ctx, q.GetImage())
}

func (s *imageService) ImageFsInfo(ctx context.Context, _ *criv1.ImageFsInfoRequest) (*criv1.ImageFsInfoResponse, error) {
	return s.r.ImageFsInfo(ctx)
}
