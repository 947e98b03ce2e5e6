package runtime

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	utilexec "k8s.io/utils/exec"
)

// service is the runtime on the wire: each method unpacks a request and
// packs an answer, nothing else.
type service struct {
	cri.UnimplementedRuntimeServiceServer
	r *Runtime
}

func (s *service) Version(ctx context.Context, q *cri.VersionRequest) (*cri.VersionResponse, error) {
	return s.r.Version(ctx, q.GetVersion())
}

func (s *service) RunPodSandbox(ctx context.Context, q *cri.RunPodSandboxRequest) (*cri.RunPodSandboxResponse, error) {
	id, err := s.r.RunPodSandbox(ctx, q.GetConfig(), q.GetRuntimeHandler())
	return &cri.RunPodSandboxResponse{PodSandboxId: id}, err
}

func (s *service) StopPodSandbox(ctx context.Context, q *cri.StopPodSandboxRequest) (*cri.StopPodSandboxResponse, error) {
	return &cri.StopPodSandboxResponse{}, s.r.StopPodSandbox(ctx, q.GetPodSandboxId())
}

func (s *service) RemovePodSandbox(ctx context.Context, q *cri.RemovePodSandboxRequest) (*cri.RemovePodSandboxResponse, error) {
	return &cri.RemovePodSandboxResponse{}, s.r.RemovePodSandbox(ctx, q.GetPodSandboxId())
}

func (s *service) PodSandboxStatus(ctx context.Context, q *cri.PodSandboxStatusRequest) (*cri.PodSandboxStatusResponse, error) {
	return s.r.PodSandboxStatus(ctx, q.GetPodSandboxId(), q.GetVerbose())
}

func (s *service) ListPodSandbox(ctx context.Context, q *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	items, err := s.r.ListPodSandbox(ctx, q.GetFilter())
	return &cri.ListPodSandboxResponse{Items: items}, err
}

func (s *service) CreateContainer(ctx context.Context, q *cri.CreateContainerRequest) (*cri.CreateContainerResponse, error) {
	id, err := s.r.CreateContainer(ctx, q.GetPodSandboxId(), q.GetConfig(), q.GetSandboxConfig())
	return &cri.CreateContainerResponse{ContainerId: id}, err
}

func (s *service) StartContainer(ctx context.Context, q *cri.StartContainerRequest) (*cri.StartContainerResponse, error) {
	return &cri.StartContainerResponse{}, s.r.StartContainer(ctx, q.GetContainerId())
}

func (s *service) StopContainer(ctx context.Context, q *cri.StopContainerRequest) (*cri.StopContainerResponse, error) {
	return &cri.StopContainerResponse{}, s.r.StopContainer(ctx, q.GetContainerId(), q.GetTimeout())
}

func (s *service) RemoveContainer(ctx context.Context, q *cri.RemoveContainerRequest) (*cri.RemoveContainerResponse, error) {
	return &cri.RemoveContainerResponse{}, s.r.RemoveContainer(ctx, q.GetContainerId())
}

func (s *service) ListContainers(ctx context.Context, q *cri.ListContainersRequest) (*cri.ListContainersResponse, error) {
	items, err := s.r.ListContainers(ctx, q.GetFilter())
	return &cri.ListContainersResponse{Containers: items}, err
}

func (s *service) ContainerStatus(ctx context.Context, q *cri.ContainerStatusRequest) (*cri.ContainerStatusResponse, error) {
	return s.r.ContainerStatus(ctx, q.GetContainerId(), q.GetVerbose())
}

func (s *service) UpdateContainerResources(ctx context.Context, q *cri.UpdateContainerResourcesRequest) (*cri.UpdateContainerResourcesResponse, error) {
	err := s.r.UpdateContainerResources(ctx, q.GetContainerId(), &cri.ContainerResources{Linux: q.GetLinux()})
	return &cri.UpdateContainerResourcesResponse{}, err
}

func (s *service) ReopenContainerLog(ctx context.Context, q *cri.ReopenContainerLogRequest) (*cri.ReopenContainerLogResponse, error) {
	return &cri.ReopenContainerLogResponse{}, s.r.ReopenContainerLog(ctx, q.GetContainerId())
}

func (s *service) ExecSync(ctx context.Context, q *cri.ExecSyncRequest) (*cri.ExecSyncResponse, error) {
	out, errOut, err := s.r.ExecSync(ctx, q.GetContainerId(), q.GetCmd(), time.Duration(q.GetTimeout())*time.Second)
	var exit utilexec.CodeExitError
	if errors.As(err, &exit) {
		err = nil
	}
	return &cri.ExecSyncResponse{Stdout: out, Stderr: errOut, ExitCode: int32(exit.Code)}, err
}

func (s *service) Exec(ctx context.Context, q *cri.ExecRequest) (*cri.ExecResponse, error) {
	return s.r.Exec(ctx, q)
}

func (s *service) Attach(ctx context.Context, q *cri.AttachRequest) (*cri.AttachResponse, error) {
	return s.r.Attach(ctx, q)
}

func (s *service) PortForward(ctx context.Context, q *cri.PortForwardRequest) (*cri.PortForwardResponse, error) {
	return s.r.PortForward(ctx, q)
}

func (s *service) ContainerStats(ctx context.Context, q *cri.ContainerStatsRequest) (*cri.ContainerStatsResponse, error) {
	st, err := s.r.ContainerStats(ctx, q.GetContainerId())
	return &cri.ContainerStatsResponse{Stats: st}, err
}

func (s *service) ListContainerStats(ctx context.Context, q *cri.ListContainerStatsRequest) (*cri.ListContainerStatsResponse, error) {
	st, err := s.r.ListContainerStats(ctx, q.GetFilter())
	return &cri.ListContainerStatsResponse{Stats: st}, err
}

func (s *service) PodSandboxStats(ctx context.Context, q *cri.PodSandboxStatsRequest) (*cri.PodSandboxStatsResponse, error) {
	st, err := s.r.PodSandboxStats(ctx, q.GetPodSandboxId())
	return &cri.PodSandboxStatsResponse{Stats: st}, err
}

func (s *service) ListPodSandboxStats(ctx context.Context, q *cri.ListPodSandboxStatsRequest) (*cri.ListPodSandboxStatsResponse, error) {
	st, err := s.r.ListPodSandboxStats(ctx, q.GetFilter())
	return &cri.ListPodSandboxStatsResponse{Stats: st}, err
}

func (s *service) UpdateRuntimeConfig(ctx context.Context, q *cri.UpdateRuntimeConfigRequest) (*cri.UpdateRuntimeConfigResponse, error) {
	return &cri.UpdateRuntimeConfigResponse{}, s.r.UpdateRuntimeConfig(ctx, q.GetRuntimeConfig())
}

func (s *service) Status(ctx context.Context, q *cri.StatusRequest) (*cri.StatusResponse, error) {
	return s.r.Status(ctx, q.GetVerbose())
}

func (s *service) CheckpointContainer(ctx context.Context, q *cri.CheckpointContainerRequest) (*cri.CheckpointContainerResponse, error) {
	return &cri.CheckpointContainerResponse{}, s.r.CheckpointContainer(ctx, q)
}

func (s *service) GetContainerEvents(_ *cri.GetEventsRequest, out grpc.ServerStreamingServer[cri.ContainerEventResponse]) error {
	ctx, cancel := context.WithCancel(out.Context())
	defer cancel()
	ch := make(chan *cri.ContainerEventResponse)
	ended := make(chan error, 1)
	go func() { ended <- s.r.GetContainerEvents(ctx, ch, nil) }()
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

func (s *service) ListMetricDescriptors(ctx context.Context, _ *cri.ListMetricDescriptorsRequest) (*cri.ListMetricDescriptorsResponse, error) {
	d, err := s.r.ListMetricDescriptors(ctx)
	return &cri.ListMetricDescriptorsResponse{Descriptors: d}, err
}

func (s *service) ListPodSandboxMetrics(ctx context.Context, _ *cri.ListPodSandboxMetricsRequest) (*cri.ListPodSandboxMetricsResponse, error) {
	m, err := s.r.ListPodSandboxMetrics(ctx)
	return &cri.ListPodSandboxMetricsResponse{PodMetrics: m}, err
}

func (s *service) RuntimeConfig(ctx context.Context, _ *cri.RuntimeConfigRequest) (*cri.RuntimeConfigResponse, error) {
	return s.r.RuntimeConfig(ctx)
}

func (s *service) UpdatePodSandboxResources(ctx context.Context, q *cri.UpdatePodSandboxResourcesRequest) (*cri.UpdatePodSandboxResourcesResponse, error) {
	return s.r.UpdatePodSandboxResources(ctx, q)
}

// imageService is the image service on the wire.
type imageService struct {
	cri.UnimplementedImageServiceServer
	r *Runtime
}

func (s *imageService) ListImages(ctx context.Context, q *cri.ListImagesRequest) (*cri.ListImagesResponse, error) {
	images, err := s.r.ListImages(ctx, q.GetFilter())
	return &cri.ListImagesResponse{Images: images}, err
}

func (s *imageService) ImageStatus(ctx context.Context, q *cri.ImageStatusRequest) (*cri.ImageStatusResponse, error) {
	return s.r.ImageStatus(ctx, q.GetImage(), q.GetVerbose())
}

func (s *imageService) PullImage(ctx context.Context, q *cri.PullImageRequest) (*cri.PullImageResponse, error) {
	ref, err := s.r.PullImage(ctx, q.GetImage(), q.GetAuth(), q.GetSandboxConfig())
	return &cri.PullImageResponse{ImageRef: ref}, err
}

func (s *imageService) RemoveImage(ctx context.Context, q *cri.RemoveImageRequest) (*cri.RemoveImageResponse, error) {
	return &cri.RemoveImageResponse{}, s.r.RemoveImage(ctx, q.GetImage())
}

func (s *imageService) ImageFsInfo(ctx context.Context, _ *cri.ImageFsInfoRequest) (*cri.ImageFsInfoResponse, error) {
	return s.r.ImageFsInfo(ctx)
}
