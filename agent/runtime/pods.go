package runtime

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/shoal-project/shoal/agent/container"
	"github.com/shoal-project/shoal/agent/sandbox"
	"github.com/shoal-project/shoal/cni/podnet"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// RunPodSandbox makes a pod's sandbox.
func (r *Runtime) RunPodSandbox(ctx context.Context, config *criv1.PodSandboxConfig, handler string) (string, error) {
	if config.GetMetadata() == nil {
		return "", toStatus(badRequest("sandbox config must include metadata"))
	}
	rt, ok := r.cfg.Runtimes[handler]
	if !ok {
		return "", toStatus(fmt.Errorf("failed to get sandbox runtime: no runtime for %q is configured", handler))
	}
	if u, err := sandbox.UserNamespace(config); err != nil {
		return "", toStatus(err)
	} else if u != nil && !rt.UserNamespaces() {
		return "", toStatus(badRequest("runtime handler %q does not support user namespaces", handler))
	}
	if sandbox.Options(config).GetPid() == criv1.NamespaceMode_POD && rt.InnerPIDs {
		return "", toStatus(badRequest("runtime handler %q does not support shareProcessNamespace: each container has "+
			"a kernel of its own", handler))
	}
	s, err := r.sandboxes.Run(ctx, config, handler)
	if err != nil {
		return "", toStatus(err)
	}
	r.events.send(
		Event{Type: criv1.ContainerEventType_CONTAINER_STARTED_EVENT, ContainerID: s.ID, SandboxID: s.ID,
			PodUID: s.UID(), At: s.CreatedAt})
	return s.ID, nil
}

// StopPodSandbox kills what still runs in the sandbox and takes its network
// away. A sandbox that is not there is no error.
func (r *Runtime) StopPodSandbox(ctx context.Context, id string) error {
	s, err := r.sandboxes.Get(id)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return toStatus(err)
	}
	err = r.eachContainer(s.ID, func(c *container.Container) error { return r.containers.Stop(ctx, c.ID, 0) })
	if err != nil {
		return toStatus(err)
	}
	wasReady := s.Ready
	if err := r.sandboxes.Stop(ctx, s.ID); err != nil {
		return toStatus(err)
	}
	if wasReady {
		r.events.send(
			Event{Type: criv1.ContainerEventType_CONTAINER_STOPPED_EVENT, ContainerID: s.ID,
				SandboxID: s.ID, PodUID: s.UID()})
	}
	return nil
}

// RemovePodSandbox removes a sandbox with its containers. A sandbox that is
// not there is no error.
func (r *Runtime) RemovePodSandbox(ctx context.Context, id string) error {
	s, err := r.sandboxes.Get(id)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return toStatus(err)
	}
	if err := r.eachContainer(s.ID,
		func(c *container.Container) error { return r.RemoveContainer(ctx, c.ID) }); err != nil {
		return toStatus(err)
	}
	if err := r.sandboxes.Remove(ctx, s.ID); err != nil {
		return toStatus(err)
	}
	r.events.send(
		Event{Type: criv1.ContainerEventType_CONTAINER_DELETED_EVENT, ContainerID: s.ID, SandboxID: s.ID, PodUID: s.UID()})
	return nil
}

// eachContainer calls fn for the sandbox's containers at the same time.
func (r *Runtime) eachContainer(sandboxID string, fn func(*container.Container) error) error {
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
	)
	for _, c := range r.containers.Select(func(c *container.Container) bool { return c.SandboxID == sandboxID }) {
		wg.Go(func() {
			if err := fn(c); err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// PodSandboxStatus describes a sandbox.
func (r *Runtime) PodSandboxStatus(_ context.Context, id string, verbose bool) (*criv1.PodSandboxStatusResponse, error) {
	s, err := r.sandboxes.Get(id)
	if err != nil {
		return nil, toStatus(err)
	}
	resp := &criv1.PodSandboxStatusResponse{Status: sandboxStatus(s)}
	if verbose {
		resp.Info = info(
			map[string]any{"netns": s.NetNS(), "pins": s.Pins, "cgroup": s.Cgroup, "dir": s.Dir, "config": s.Config})
	}
	return resp, nil
}

func sandboxStatus(s *sandbox.Sandbox) *criv1.PodSandboxStatus {
	return &criv1.PodSandboxStatus{
		Id: s.ID, Metadata: s.Config.GetMetadata(), State: sandboxState(s), CreatedAt: s.CreatedAt.UnixNano(),
		Network: networkStatus(s.IPs), Labels: s.Config.GetLabels(), Annotations: s.Config.GetAnnotations(),
		RuntimeHandler: s.Handler,
		Linux:          &criv1.LinuxPodSandboxStatus{Namespaces: &criv1.Namespace{Options: sandbox.Options(s.Config)}},
	}
}

func sandboxState(s *sandbox.Sandbox) criv1.PodSandboxState {
	if s.Ready {
		return criv1.PodSandboxState_SANDBOX_READY
	}
	return criv1.PodSandboxState_SANDBOX_NOTREADY
}

func networkStatus(ips []netip.Addr) *criv1.PodSandboxNetworkStatus {
	n := &criv1.PodSandboxNetworkStatus{}
	for i, ip := range ips {
		if i == 0 {
			n.Ip = ip.String()
			continue
		}
		n.AdditionalIps = append(n.AdditionalIps, &criv1.PodIP{Ip: ip.String()})
	}
	return n
}

// ListPodSandbox lists the sandboxes that match.
func (r *Runtime) ListPodSandbox(_ context.Context, f *criv1.PodSandboxFilter) ([]*criv1.PodSandbox, error) {
	var out []*criv1.PodSandbox
	for _, s := range r.sandboxes.Select(func(s *sandbox.Sandbox) bool {
		return (f.GetId() == "" || hasPrefix(s.ID, f.GetId())) &&
			(f.GetState() == nil || f.GetState().GetState() == sandboxState(s)) &&
			selects(f.GetLabelSelector(), s.Config.GetLabels())
	}) {
		out = append(out, &criv1.PodSandbox{
			Id: s.ID, Metadata: s.Config.GetMetadata(), State: sandboxState(s), CreatedAt: s.CreatedAt.UnixNano(),
			Labels: s.Config.GetLabels(), Annotations: s.Config.GetAnnotations(), RuntimeHandler: s.Handler,
		})
	}
	return out, nil
}

// UpdatePodSandboxResources is told after the pod's group was changed by its
// owner; there is nothing more to do.
func (r *Runtime) UpdatePodSandboxResources(_ context.Context,
	req *criv1.UpdatePodSandboxResourcesRequest) (*criv1.UpdatePodSandboxResourcesResponse, error) {
	if _, err := r.sandboxes.Get(req.GetPodSandboxId()); err != nil {
		return nil, toStatus(err)
	}
	return &criv1.UpdatePodSandboxResourcesResponse{}, nil
}

// Outdate says that a sandbox must be made anew, as when its network is no more: it
// is not ready, and its pod is told.
func (r *Runtime) Outdate(id string) error {
	s, err := r.sandboxes.Get(id)
	if err == nil {
		err = r.sandboxes.Outdate(s.ID)
	}
	if err != nil {
		return fmt.Errorf("outdate sandbox: %w", err)
	}
	r.events.send(
		Event{Type: criv1.ContainerEventType_CONTAINER_STOPPED_EVENT, ContainerID: s.ID, SandboxID: s.ID, PodUID: s.UID()})
	return nil
}

// Connected tells which sandboxes a network has, as sandbox.Manager does.
func (r *Runtime) Connected() (ids []string, ready []podnet.Sandbox) { return r.sandboxes.Connected() }
