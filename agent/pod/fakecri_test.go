package pod

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"
	"time"

	cri "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// fakeCRI is a container runtime that holds its state in memory. Containers
// run until end is called or they are stopped; stubborn ones ignore SIGTERM.
type fakeCRI struct {
	cri.RuntimeService
	cri.ImageManagerService

	mu         sync.Mutex
	n          int
	sandboxes  map[string]*runtimeapi.PodSandbox
	containers map[string]*fakeContainer
	images     map[string]bool
	pullable   map[string]bool
	stubborn   bool
	events     chan *runtimeapi.ContainerEventResponse
}

type fakeContainer struct {
	runtimeapi.ContainerStatus
	sandbox string
}

func newFakeCRI() *fakeCRI {
	return &fakeCRI{sandboxes: map[string]*runtimeapi.PodSandbox{}, containers: map[string]*fakeContainer{},
		images: map[string]bool{"i:1": true}, pullable: map[string]bool{}, events: make(chan *runtimeapi.ContainerEventResponse, 1000)}
}

// String shows the containers, as in "a#0=run b#1=exit3".
func (f *fakeCRI) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for _, c := range f.containers {
		state := "created"
		switch c.State {
		case runtimeapi.ContainerState_CONTAINER_RUNNING:
			state = "run"
		case runtimeapi.ContainerState_CONTAINER_EXITED:
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
		if c.Metadata.Name == name && c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			f.exit(c, code)
		}
	}
}

func (f *fakeCRI) exit(c *fakeContainer, code int32) {
	c.State, c.ExitCode, c.FinishedAt = runtimeapi.ContainerState_CONTAINER_EXITED, code, time.Now().UnixNano()
	f.tell(c.sandbox)
}

func (f *fakeCRI) tell(sandbox string) {
	f.events <- &runtimeapi.ContainerEventResponse{PodSandboxStatus: &runtimeapi.PodSandboxStatus{Metadata: f.sandboxes[sandbox].Metadata}}
}

func (f *fakeCRI) id(kind string) string {
	f.n++
	return fmt.Sprintf("%s%d", kind, f.n)
}

func (f *fakeCRI) RunPodSandbox(_ context.Context, c *runtimeapi.PodSandboxConfig, _ string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := f.id("s")
	f.sandboxes[id] = &runtimeapi.PodSandbox{Id: id, Metadata: c.Metadata, Labels: c.Labels, CreatedAt: time.Now().UnixNano()}
	return id, nil
}

func (f *fakeCRI) StopPodSandbox(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.sandboxes[id]; s != nil {
		s.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
		for _, c := range f.containers {
			if c.sandbox == id && c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
				f.exit(c, 137)
			}
		}
	}
	return nil
}

func (f *fakeCRI) RemovePodSandbox(ctx context.Context, id string) error {
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

func (f *fakeCRI) ListPodSandbox(_ context.Context, flt *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []*runtimeapi.PodSandbox
	for _, s := range f.sandboxes {
		if labelled(s.Labels, flt.GetLabelSelector()) {
			out = append(out, &runtimeapi.PodSandbox{Id: s.Id, Metadata: s.Metadata, Labels: s.Labels, State: s.State, CreatedAt: s.CreatedAt})
		}
	}
	return out, nil
}

func (f *fakeCRI) PodSandboxStatus(_ context.Context, id string, _ bool) (*runtimeapi.PodSandboxStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.sandboxes[id]
	if s == nil {
		return nil, errors.New("no such sandbox")
	}
	return &runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{Id: id, State: s.State, Metadata: s.Metadata,
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: "10.0.0.1"}}}, nil
}

func (f *fakeCRI) CreateContainer(_ context.Context, sandbox string, c *runtimeapi.ContainerConfig, _ *runtimeapi.PodSandboxConfig) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := f.id("c")
	f.containers[id] = &fakeContainer{sandbox: sandbox, ContainerStatus: runtimeapi.ContainerStatus{Id: id, Metadata: c.Metadata,
		Labels: c.Labels, Annotations: c.Annotations, CreatedAt: time.Now().UnixNano()}}
	return id, nil
}

func (f *fakeCRI) StartContainer(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[id]
	c.State, c.StartedAt = runtimeapi.ContainerState_CONTAINER_RUNNING, time.Now().UnixNano()
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
	if c := f.containers[id]; c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
		f.exit(c, code)
	}
	return nil
}

func (f *fakeCRI) UpdateContainerResources(_ context.Context, id string, r *runtimeapi.ContainerResources) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.containers[id].Resources = r
	return nil
}

func (f *fakeCRI) ContainerStats(context.Context, string) (*runtimeapi.ContainerStats, error) {
	return &runtimeapi.ContainerStats{Memory: &runtimeapi.MemoryUsage{UsageBytes: &runtimeapi.UInt64Value{Value: 50 << 20}}}, nil
}

// memory is the limit that the newest container of a name was given later.
func (f *fakeCRI) memory(name string) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.containers {
		if c.Metadata.Name == name && c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
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

func (f *fakeCRI) ListContainers(_ context.Context, flt *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []*runtimeapi.Container
	for _, c := range f.containers {
		if labelled(c.Labels, flt.GetLabelSelector()) {
			out = append(out, &runtimeapi.Container{Id: c.Id, PodSandboxId: c.sandbox})
		}
	}
	return out, nil
}

func (f *fakeCRI) ContainerStatus(_ context.Context, id string, _ bool) (*runtimeapi.ContainerStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[id]
	if c == nil {
		return nil, errors.New("no such container")
	}
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{Id: c.Id, Metadata: c.Metadata, State: c.State,
		CreatedAt: c.CreatedAt, StartedAt: c.StartedAt, FinishedAt: c.FinishedAt, ExitCode: c.ExitCode, Labels: c.Labels, Annotations: c.Annotations}}, nil
}

func (f *fakeCRI) GetContainerEvents(ctx context.Context, ch chan *runtimeapi.ContainerEventResponse, _ func(runtimeapi.RuntimeService_GetContainerEventsClient)) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-f.events:
			select {
			case ch <- e:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

func (f *fakeCRI) ImageStatus(_ context.Context, s *runtimeapi.ImageSpec, _ bool) (*runtimeapi.ImageStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.images[s.Image] {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	return &runtimeapi.ImageStatusResponse{Image: &runtimeapi.Image{Id: s.Image}}, nil
}

func (f *fakeCRI) ListImages(context.Context, *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []*runtimeapi.Image
	for id := range f.images {
		out = append(out, &runtimeapi.Image{Id: id, RepoTags: []string{id}})
	}
	return out, nil
}

func (f *fakeCRI) PullImage(_ context.Context, s *runtimeapi.ImageSpec, _ *runtimeapi.AuthConfig, _ *runtimeapi.PodSandboxConfig) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.pullable[s.Image] {
		return "", errors.New("registry says no")
	}
	f.images[s.Image] = true
	return s.Image, nil
}

func (f *fakeCRI) Close(context.Context) error { return nil }
