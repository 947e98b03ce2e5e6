package runtime

import (
	"slices"

	"google.golang.org/grpc"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
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

func (s *service) StreamPodSandboxes(q *criv1.StreamPodSandboxesRequest,
	out grpc.ServerStreamingServer[criv1.StreamPodSandboxesResponse]) error {
	items, err := s.r.ListPodSandbox(out.Context(), q.GetFilter())
	return sendAll(items, err, out, func(p []*criv1.PodSandbox) *criv1.StreamPodSandboxesResponse {
		return &criv1.StreamPodSandboxesResponse{PodSandboxes: p}
	})
}

func (s *service) StreamContainers(q *criv1.StreamContainersRequest,
	out grpc.ServerStreamingServer[criv1.StreamContainersResponse]) error {
	items, err := s.r.ListContainers(out.Context(), q.GetFilter())
	return sendAll(items, err, out, func(p []*criv1.Container) *criv1.StreamContainersResponse {
		return &criv1.StreamContainersResponse{Containers: p}
	})
}

func (s *service) StreamContainerStats(q *criv1.StreamContainerStatsRequest,
	out grpc.ServerStreamingServer[criv1.StreamContainerStatsResponse]) error {
	items, err := s.r.ListContainerStats(out.Context(), q.GetFilter())
	return sendAll(items, err, out, func(p []*criv1.ContainerStats) *criv1.StreamContainerStatsResponse {
		return &criv1.StreamContainerStatsResponse{ContainerStats: p}
	})
}

func (s *service) StreamPodSandboxStats(q *criv1.StreamPodSandboxStatsRequest,
	out grpc.ServerStreamingServer[criv1.StreamPodSandboxStatsResponse]) error {
	items, err := s.r.ListPodSandboxStats(out.Context(), q.GetFilter())
	return sendAll(items, err, out, func(p []*criv1.PodSandboxStats) *criv1.StreamPodSandboxStatsResponse {
		return &criv1.StreamPodSandboxStatsResponse{PodSandboxStats: p}
	})
}

func (s *service) StreamPodSandboxMetrics(_ *criv1.StreamPodSandboxMetricsRequest,
	out grpc.ServerStreamingServer[criv1.StreamPodSandboxMetricsResponse]) error {
	items, err := s.r.ListPodSandboxMetrics(out.Context())
	return sendAll(items, err, out, func(p []*criv1.PodSandboxMetrics) *criv1.StreamPodSandboxMetricsResponse {
		return &criv1.StreamPodSandboxMetricsResponse{PodSandboxMetrics: p}
	})
}

func (s *imageService) StreamImages(q *criv1.StreamImagesRequest,
	out grpc.ServerStreamingServer[criv1.StreamImagesResponse]) error {
	items, err := s.r.ListImages(out.Context(), q.GetFilter())
	return sendAll(items, err, out, func(p []*criv1.Image) *criv1.StreamImagesResponse {
		return &criv1.StreamImagesResponse{Images: p}
	})
}
