package main

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/shoal-project/shoal/agent/api"
	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/device/dra"
	"github.com/shoal-project/shoal/agent/device/plugin"
	"github.com/shoal-project/shoal/agent/metrics"
	"github.com/shoal-project/shoal/agent/plugins"
	"github.com/shoal-project/shoal/agent/pod"
	"github.com/shoal-project/shoal/agent/podresources"
)

// newClaims has drivers prepare the devices of resource claims.
func newClaims(cfg *config.Config, server *api.Server, records dra.Records, boot string, counts *metrics.Agent,
	log *slog.Logger) (*dra.Manager, error) {
	drivers := &dra.Drivers{Node: cfg.NodeName, Log: log, Calls: counts.ClaimCalls}
	if server.Configured() {
		drivers.Client = server.Client
	}
	m := &dra.Manager{
		Drivers: drivers,
		Records: records,
		Claim: func(ctx context.Context, namespace, name string) (*resourcev1.ResourceClaim, error) {
			if !server.Configured() {
				return nil, errors.New("the node has no API server")
			}
			return server.Client.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		Boot:      boot,
		Durations: counts.Claims,
	}
	return m, m.Load()
}

// draPlugins has drivers of dynamic resources taken.
type draPlugins struct{ drivers *dra.Drivers }

// Register implements plugins.Handler.
func (p draPlugins) Register(_ context.Context, one plugins.Plugin) error {
	return p.drivers.Register(one.Name, one.Endpoint, one.Versions)
}

// Deregister implements plugins.Handler.
func (p draPlugins) Deregister(one plugins.Plugin) { p.drivers.Deregister(one.Name, one.Endpoint) }

// devicePluginsDir and podResourcesDir hold sockets, where the kubelet has them.
func devicePluginsDir(cfg *config.Config) string { return filepath.Join(cfg.RootDir, "device-plugins") }

func podResourcesDir(cfg *config.Config) string { return filepath.Join(cfg.RootDir, "pod-resources") }

// newDevices has device plugins allocate devices.
func newDevices(cfg *config.Config, kept stores, boot string, counts *metrics.Agent,
	log *slog.Logger) (*plugin.Manager, error) {
	m := &plugin.Manager{
		Dir:     devicePluginsDir(cfg),
		Records: kept.devices,
		Known:   kept.resources,
		Boot:    boot,
		Log:     log,

		Registrations: counts.DevicePlugins,
		Allocations:   counts.DeviceAllocations,
	}
	return m, m.Load()
}

// followDevices has a node's pods know of their devices, and the Node of all; poke has
// the Node looked at.
func followDevices(m *plugin.Manager, pods *pod.Manager, poke func()) {
	m.Changed, m.Poke = poke, pods.Poke
	m.Ready = func() { pods.RetrySetup(noDevicesYet) }
	m.Ending = pods.Ending
}

// counted are the devices of the node in the form of the Node.
func counted(e *exact) func() (capacity, allocatable corev1.ResourceList) {
	if e == nil {
		return nil
	}
	return func() (capacity, allocatable corev1.ResourceList) {
		capacity, allocatable = corev1.ResourceList{}, corev1.ResourceList{}
		for name, f := range e.plugged.Figures() {
			capacity[name] = *resource.NewQuantity(f.Capacity, resource.DecimalSI)
			allocatable[name] = *resource.NewQuantity(f.Allocatable, resource.DecimalSI)
		}
		return capacity, allocatable
	}
}

// health is what is known of the devices of a container, by its claims and by plugins.
func health(b base) func(p *corev1.Pod, c *corev1.Container) []corev1.ResourceStatus {
	if b.exact == nil {
		return b.claims.Health
	}
	return func(p *corev1.Pod, c *corev1.Container) []corev1.ResourceStatus {
		return append(b.exact.plugged.Health(p, c), b.claims.Health(p, c)...)
	}
}

// devicePlugins has device plugins taken that are found by their sockets.
type devicePlugins struct{ m *plugin.Manager }

// Register implements plugins.Handler.
func (d devicePlugins) Register(ctx context.Context, p plugins.Plugin) error {
	return d.m.Register(ctx, p.Name, p.Endpoint, p.Versions)
}

// Deregister implements plugins.Handler.
func (d devicePlugins) Deregister(p plugins.Plugin) { d.m.Deregister(p.Name, p.Endpoint) }

// newPodResources tells monitoring agents which devices, CPUs and memory containers have.
func newPodResources(b base, pods *pod.Manager) *podresources.Server {
	return &podresources.Server{
		Dir:  podResourcesDir(b.cfg),
		Pods: pods.Active,
		Find: func(namespace, name string) (*corev1.Pod, bool) {
			v, found := pods.Find(namespace, name)
			return v.Pod, found
		},
		Devices: b.exact.plugged.Devices,
		CPUs:    b.exact.podCPUs,
		Memory:  b.exact.podMemory,
		Allocatable: func() *podresourcesv1.AllocatableResourcesResponse {
			return &podresourcesv1.AllocatableResourcesResponse{
				Devices: b.exact.plugged.Allocatable(),
				CpuIds:  b.exact.allocatableCPUs(),
				Memory:  b.exact.allocatableMemory(),
			}
		},
		Claims:   b.claims.Resources,
		Requests: b.counts.PodResources,
		Calls:    b.counts.PodResourceCalls,
	}
}
