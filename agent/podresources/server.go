package podresources

import (
	"context"
	"errors"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	podresourcesv1alpha1 "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"github.com/shoal-project/shoal/agent/beneath"
	"github.com/shoal-project/shoal/agent/metrics"
)

const (
	// socketName is the kubelet's.
	socketName = "kubelet.sock"
	// perSecond and burst are how many requests are answered (upstream's).
	perSecond, burst = 100, 10
	// maxRequest is the size of a request, in bytes.
	maxRequest = 64 << 10
	// handshake is how long a connection may take to become one of gRPC.
	handshake = 10 * time.Second
)

// Server serves the API.
type Server struct {
	podresourcesv1.UnimplementedPodResourcesListerServer
	// Dir is pod-resources in the kubelet's root directory.
	Dir string
	// Pods are those that have not ended, Find is a pod by its name.
	Pods func() []*corev1.Pod
	Find func(namespace, name string) (*corev1.Pod, bool)
	// Devices, CPUs and Memory are what a container has for itself; Claims are what the claims
	// have of which it asks for some.
	Devices func(pod types.UID, container string) []*podresourcesv1.ContainerDevices
	CPUs    func(pod types.UID, container string) []int64
	Memory  func(pod types.UID, container string) []*podresourcesv1.ContainerMemory
	Claims  func(p *corev1.Pod, c *corev1.Container) []*podresourcesv1.DynamicResource
	// Allocatable is all that containers can have for themselves, devices that are healthy.
	Allocatable func() *podresourcesv1.AllocatableResourcesResponse
	// Requests counts by version; nil: nobody does.
	Requests *metrics.Counts
	// Calls are the same by method.
	Calls map[string]metrics.Calls
}

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	if err := os.MkdirAll(s.Dir, 0o750); err != nil {
		return err
	}
	dir, err := beneath.Open(s.Dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	l, err := dir.Listen(socketName)
	if err != nil {
		return err
	}
	g := grpc.NewServer(grpc.MaxRecvMsgSize(maxRequest), grpc.MaxConcurrentStreams(16), grpc.ConnectionTimeout(handshake),
		grpc.WaitForHandlers(true),
		grpc.UnaryInterceptor(limited(rate.NewLimiter(perSecond, burst), s.Requests, s.Calls)))
	podresourcesv1.RegisterPodResourcesListerServer(g, s)
	podresourcesv1alpha1.RegisterPodResourcesListerServer(g, &alpha{s: s})
	ended := make(chan error, 1)
	go func() { ended <- g.Serve(l) }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		_ = dir.Root.Remove(socketName)
		g.Stop()
		err = <-ended
	}
	if errors.Is(err, grpc.ErrServerStopped) {
		err = nil
	}
	return err
}

// limited refuses what is more than the limiter allows, and counts the rest.
func limited(
	l *rate.Limiter, counts *metrics.Counts, calls map[string]metrics.Calls,
) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		if !l.Allow() {
			return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
		}
		version, _, _ := strings.Cut(strings.TrimPrefix(info.FullMethod, "/"), ".")
		counts.Inc(version)
		of := calls[path.Base(info.FullMethod)]
		of.Requests.Inc(version)
		out, err := handle(ctx, request)
		if err != nil {
			of.Errors.Inc(version)
		}
		return out, err
	}
}

// List tells of all pods.
func (s *Server) List(context.Context, *podresourcesv1.ListPodResourcesRequest) (
	*podresourcesv1.ListPodResourcesResponse, error) {
	out := &podresourcesv1.ListPodResourcesResponse{}
	for _, p := range s.Pods() {
		out.PodResources = append(out.PodResources, s.of(p))
	}
	return out, nil
}

// Get tells of one pod.
func (s *Server) Get(_ context.Context, r *podresourcesv1.GetPodResourcesRequest) (
	*podresourcesv1.GetPodResourcesResponse, error) {
	p, found := s.Find(r.GetPodNamespace(), r.GetPodName())
	if !found {
		return nil, status.Errorf(codes.NotFound, "pod %s in namespace %s not found", r.GetPodName(), r.GetPodNamespace())
	}
	return &podresourcesv1.GetPodResourcesResponse{PodResources: s.of(p)}, nil
}

// GetAllocatableResources tells of what there is, whoever has it.
func (s *Server) GetAllocatableResources(context.Context, *podresourcesv1.AllocatableResourcesRequest) (
	*podresourcesv1.AllocatableResourcesResponse, error) {
	return s.Allocatable(), nil
}

// of tells of the containers that run as long as their pod.
func (s *Server) of(p *corev1.Pod) *podresourcesv1.PodResources {
	out := &podresourcesv1.PodResources{Name: p.Name, Namespace: p.Namespace}
	add := func(c *corev1.Container) {
		out.Containers = append(out.Containers, &podresourcesv1.ContainerResources{
			Name:             c.Name,
			Devices:          s.Devices(p.UID, c.Name),
			CpuIds:           s.CPUs(p.UID, c.Name),
			Memory:           s.Memory(p.UID, c.Name),
			DynamicResources: s.Claims(p, c),
		})
	}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	for i := range p.Spec.Containers {
		add(&p.Spec.Containers[i])
	}
	return out
}
