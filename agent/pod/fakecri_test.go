package pod

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"
	"time"

	criapi "k8s.io/cri-api/pkg/apis"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// fakeCRI is a container runtime that holds its state in memory. Containers
// run until end is called or they are stopped; stubborn ones ignore SIGTERM.
type fakeCRI struct {
	criapi.RuntimeService
	criapi.ImageManagerService

	mu         sync.Mutex
	n          int
	sandboxes  map[string]*criv1.PodSandbox
	containers map[string]*fakeContainer
	images     map[string]bool
	pullable   map[string]bool
	stubborn   bool
	clock      time.Duration            // how far the runtime's is ahead of the time now
	slow       map[string]time.Duration // creations of containers by name, and pulls, by "pull"
	removing   func()                   // called before a sandbox is removed
	events     chan *criv1.ContainerEventResponse
	breaks     chan error // ends who follows the events
	connecting func()     // called before events are followed
}

type fakeContainer struct {
	criv1.ContainerStatus
	sandbox string
}

func newFakeCRI() *fakeCRI {
	return &fakeCRI{sandboxes: map[string]*criv1.PodSandbox{}, containers: map[string]*fakeContainer{},
		images: map[string]bool{"i:1": true}, pullable: map[string]bool{}, slow: map[string]time.Duration{},
		events: make(chan *criv1.ContainerEventResponse, 1000)}
}

// String shows the containers, as in "a#0=run b#1=exit3".
func (f *fakeCRI) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for _, c := range f.containers {
		state := "created"
		switch c.State {
		case criv1.ContainerState_CONTAINER_RUNNING:
			state = "run"
		case criv1.ContainerState_CONTAINER_EXITED:
			state = fmt.Sprintf("exit%d", c.ExitCode)
		}
		out = append(out, fmt.Sprintf("%s#%d=%s", c.Metadata.Name, c.Metadata.Attempt, state))
	}
	sort.Strings(out)
	return strings.Join(out, " ")
}

// end lets the running container of a name exit.
func (f *fakeCRI) end(name string, code int32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.containers {
		if c.Metadata.Name == name && c.State == criv1.ContainerState_CONTAINER_RUNNING {
			f.exit(c, code)
		}
	}
}

func (f *fakeCRI) exit(c *fakeContainer, code int32) {
	c.State, c.ExitCode, c.FinishedAt = criv1.ContainerState_CONTAINER_EXITED, code, f.now()
	f.tell(c.sandbox)
}

func (f *fakeCRI) tell(sandbox string) {
	f.events <- &criv1.ContainerEventResponse{
		ContainerEventType: criv1.ContainerEventType_CONTAINER_STOPPED_EVENT,
		PodSandboxStatus:   &criv1.PodSandboxStatus{Metadata: f.sandboxes[sandbox].Metadata}}
}

func (f *fakeCRI) now() int64 { return time.Now().Add(f.clock).UnixNano() }

func (f *fakeCRI) id(kind string) string {
	f.n++
	return fmt.Sprintf("%s%d", kind, f.n)
}

func (f *fakeCRI) RunPodSandbox(_ context.Context, c *criv1.PodSandboxConfig, _ string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := f.id("s")
	f.sandboxes[id] = &criv1.PodSandbox{Id: id, Metadata: c.Metadata, Labels: c.Labels, CreatedAt: time.Now().UnixNano()}
	return id, nil
}

func (f *fakeCRI) StopPodSandbox(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.sandboxes[id]; s != nil {
		s.State = criv1.PodSandboxState_SANDBOX_NOTREADY
		for _, c := range f.containers {
			if c.sandbox == id && c.State == criv1.ContainerState_CONTAINER_RUNNING {
				f.exit(c, 137)
			}
		}
	}
	return nil
}

func (f *fakeCRI) RemovePodSandbox(ctx context.Context, id string) error {
	if f.removing != nil {
		f.removing()
	}
	if err := f.StopPodSandbox(ctx, id); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for cid, c := range f.containers {
		if c.sandbox == id {
			delete(f.containers, cid)
		}
	}
	delete(f.sandboxes, id)
	return nil
}

func labelled(labels, want map[string]string) bool {
	for k, v := range want {
		if labels[k] != v {
			return false
		}
	}
	return true
}

func (f *fakeCRI) ListPodSandbox(_ context.Context, flt *criv1.PodSandboxFilter) ([]*criv1.PodSandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []*criv1.PodSandbox
	for _, s := range f.sandboxes {
		if labelled(s.Labels, flt.GetLabelSelector()) {
			out = append(out,
				&criv1.PodSandbox{Id: s.Id, Metadata: s.Metadata, Labels: s.Labels,
					State: s.State, CreatedAt: s.CreatedAt})
		}
	}
	return out, nil
}

func (f *fakeCRI) PodSandboxStatus(_ context.Context, id string, _ bool) (*criv1.PodSandboxStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sandboxes[id]
	if s == nil {
		return nil, errors.New("no such sandbox")
	}
	return &criv1.PodSandboxStatusResponse{Status: &criv1.PodSandboxStatus{Id: id, State: s.State, Metadata: s.Metadata,
		Network: &criv1.PodSandboxNetworkStatus{Ip: "10.0.0.1"}}}, nil
}

// take lets an operation take its time.
func (f *fakeCRI) take(ctx context.Context, what string) error {
	f.mu.Lock()
	d := f.slow[what]
	f.mu.Unlock()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func (f *fakeCRI) CreateContainer(ctx context.Context, sandbox string, c *criv1.ContainerConfig,
	_ *criv1.PodSandboxConfig) (string, error) {
	if err := f.take(ctx, c.Metadata.Name); err != nil {
		return "", err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	id := f.id("c")
	f.containers[id] = &fakeContainer{sandbox: sandbox,
		ContainerStatus: criv1.ContainerStatus{Id: id, Metadata: c.Metadata,
			Labels: c.Labels, Annotations: c.Annotations, CreatedAt: f.now()}}
	return id, nil
}

func (f *fakeCRI) StartContainer(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[id]
	c.State, c.StartedAt = criv1.ContainerState_CONTAINER_RUNNING, f.now()
	f.tell(c.sandbox)
	return nil
}

func (f *fakeCRI) StopContainer(ctx context.Context, id string, grace int64) error {
	f.mu.Lock()
	stubborn := f.stubborn
	f.mu.Unlock()
	code := int32(0)
	if stubborn {
		select {
		case <-time.After(time.Duration(grace) * time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
		code = 137
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.containers[id]; c.State == criv1.ContainerState_CONTAINER_RUNNING {
		f.exit(c, code)
	}
	return nil
}

func (f *fakeCRI) UpdateContainerResources(_ context.Context, id string, r *criv1.ContainerResources) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.containers[id].Resources = r
	return nil
}

func (f *fakeCRI) ContainerStats(context.Context, string) (*criv1.ContainerStats, error) {
	return &criv1.ContainerStats{Memory: &criv1.MemoryUsage{UsageBytes: &criv1.UInt64Value{Value: 50 << 20}}}, nil
}

// quota is that of CPU time that the newest container of a name was given later.
func (f *fakeCRI) quota(name string) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.containers {
		if c.Metadata.Name == name && c.State == criv1.ContainerState_CONTAINER_RUNNING {
			return c.Resources.GetLinux().GetCpuQuota()
		}
	}
	return 0
}

// memory is the limit that the newest container of a name was given later.
func (f *fakeCRI) memory(name string) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.containers {
		if c.Metadata.Name == name && c.State == criv1.ContainerState_CONTAINER_RUNNING {
			return c.Resources.GetLinux().GetMemoryLimitInBytes()
		}
	}
	return -1
}

func (f *fakeCRI) RemoveContainer(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.containers, id)
	return nil
}

func (f *fakeCRI) ListContainers(_ context.Context, flt *criv1.ContainerFilter) ([]*criv1.Container, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []*criv1.Container
	for _, c := range f.containers {
		if labelled(c.Labels, flt.GetLabelSelector()) {
			out = append(out, &criv1.Container{Id: c.Id, PodSandboxId: c.sandbox})
		}
	}
	return out, nil
}

func (f *fakeCRI) ContainerStatus(_ context.Context, id string, _ bool) (*criv1.ContainerStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[id]
	if c == nil {
		return nil, errors.New("no such container")
	}
	return &criv1.ContainerStatusResponse{Status: &criv1.ContainerStatus{Id: c.Id, Metadata: c.Metadata, State: c.State,
		CreatedAt: c.CreatedAt, StartedAt: c.StartedAt, FinishedAt: c.FinishedAt, ExitCode: c.ExitCode,
		Labels: c.Labels, Annotations: c.Annotations}}, nil
}

func (f *fakeCRI) GetContainerEvents(ctx context.Context, ch chan *criv1.ContainerEventResponse,
	connected func(criv1.RuntimeService_GetContainerEventsClient)) error {
	if f.connecting != nil {
		f.connecting()
	}
	connected(nil)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-f.breaks:
			return err
		case e := <-f.events:
			select {
			case ch <- e:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

func (f *fakeCRI) ImageStatus(_ context.Context, s *criv1.ImageSpec, _ bool) (*criv1.ImageStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.images[s.Image] {
		return &criv1.ImageStatusResponse{}, nil
	}
	return &criv1.ImageStatusResponse{Image: &criv1.Image{Id: s.Image}}, nil
}

func (f *fakeCRI) ListImages(context.Context, *criv1.ImageFilter) ([]*criv1.Image, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []*criv1.Image
	for id := range f.images {
		out = append(out, &criv1.Image{Id: id, RepoTags: []string{id}})
	}
	return out, nil
}

func (f *fakeCRI) PullImage(ctx context.Context, s *criv1.ImageSpec, _ *criv1.AuthConfig,
	_ *criv1.PodSandboxConfig) (string, error) {
	if err := f.take(ctx, "pull"); err != nil {
		return "", err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.pullable[s.Image] {
		return "", errors.New("registry says no")
	}
	f.images[s.Image] = true
	return s.Image, nil
}

func (f *fakeCRI) Close(context.Context) error { return nil }
