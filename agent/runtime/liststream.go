package runtime

import (
	"slices"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The streaming lists of KEP-5825: the same items as the lists, in pieces that
// no limit on a message's size can reach.

// streamed is how many items one message has.
const streamed = 128

// sendAll sends items in pieces that wrap packs into messages.
func sendAll[T, M any](items []T, err error, out grpc.ServerStreamingServer[M], wrap func([]T) *M) error {
	if err != nil {
		return err
	}
	for piece := range slices.Chunk(items, streamed) {
		if err := out.Send(wrap(piece)); err != nil {
			return err
		}
	}
	return nil
}

func (s *service) StreamPodSandboxes(q *cri.StreamPodSandboxesRequest, out grpc.ServerStreamingServer[cri.StreamPodSandboxesResponse]) error {
	items, err := s.r.ListPodSandbox(out.Context(), q.GetFilter())
	return sendAll(items, err, out, func(p []*cri.PodSandbox) *cri.StreamPodSandboxesResponse {
		return &cri.StreamPodSandboxesResponse{PodSandboxes: p}
	})
}

func (s *service) StreamContainers(q *cri.StreamContainersRequest, out grpc.ServerStreamingServer[cri.StreamContainersResponse]) error {
	items, err := s.r.ListContainers(out.Context(), q.GetFilter())
	return sendAll(items, err, out, func(p []*cri.Container) *cri.StreamContainersResponse {
		return &cri.StreamContainersResponse{Containers: p}
	})
}

func (s *service) StreamContainerStats(q *cri.StreamContainerStatsRequest, out grpc.ServerStreamingServer[cri.StreamContainerStatsResponse]) error {
	items, err := s.r.ListContainerStats(out.Context(), q.GetFilter())
	return sendAll(items, err, out, func(p []*cri.ContainerStats) *cri.StreamContainerStatsResponse {
		return &cri.StreamContainerStatsResponse{ContainerStats: p}
	})
}

func (s *service) StreamPodSandboxStats(q *cri.StreamPodSandboxStatsRequest, out grpc.ServerStreamingServer[cri.StreamPodSandboxStatsResponse]) error {
	items, err := s.r.ListPodSandboxStats(out.Context(), q.GetFilter())
	return sendAll(items, err, out, func(p []*cri.PodSandboxStats) *cri.StreamPodSandboxStatsResponse {
		return &cri.StreamPodSandboxStatsResponse{PodSandboxStats: p}
	})
}

func (s *service) StreamPodSandboxMetrics(_ *cri.StreamPodSandboxMetricsRequest, out grpc.ServerStreamingServer[cri.StreamPodSandboxMetricsResponse]) error {
	items, err := s.r.ListPodSandboxMetrics(out.Context())
	return sendAll(items, err, out, func(p []*cri.PodSandboxMetrics) *cri.StreamPodSandboxMetricsResponse {
		return &cri.StreamPodSandboxMetricsResponse{PodSandboxMetrics: p}
	})
}

func (s *imageService) StreamImages(q *cri.StreamImagesRequest, out grpc.ServerStreamingServer[cri.StreamImagesResponse]) error {
	items, err := s.r.ListImages(out.Context(), q.GetFilter())
	return sendAll(items, err, out, func(p []*cri.Image) *cri.StreamImagesResponse {
		return &cri.StreamImagesResponse{Images: p}
	})
}
