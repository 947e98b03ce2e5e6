package hollow

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// CreateContainer makes an entry.
func (r *Runtime) CreateContainer(_ context.Context, id string, c *criv1.ContainerConfig,
	_ *criv1.PodSandboxConfig) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[id]
	if s == nil {
		return "", noSandbox(id)
	}
	n := &container{sandbox: s}
	n.Id, n.Metadata, n.Labels, n.Annotations = newID(), c.Metadata, c.Labels, c.Annotations
	n.Image, n.CreatedAt = c.Image, time.Now().UnixNano()
	if img := r.images[c.Image.GetImage()]; img != nil {
		n.ImageRef, n.ImageId = img.RepoDigests[0], img.Id
	}
	r.containers[n.Id] = n
	return n.Id, nil
}

// StartContainer lets it run after the start delay.
func (r *Runtime) StartContainer(ctx context.Context, id string) error {
	if d := r.cfg.StartDelay; d > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(d):
		}
	}
	life := r.lifetime(id) // before the lock: it looks at the pod
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[id]
	if c == nil {
		return noContainer(id)
	}
	c.State, c.StartedAt = criv1.ContainerState_CONTAINER_RUNNING, time.Now().UnixNano()
	if life > 0 {
		c.end = time.AfterFunc(life, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.exit(c, 0)
		})
	}
	r.tell(c.sandbox)
	return nil
}

func (r *Runtime) lifetime(id string) time.Duration {
	r.mu.Lock()
	c := r.containers[id]
	r.mu.Unlock()
	if c == nil || r.cfg.Lifetime == nil {
		return 0
	}
	return r.cfg.Lifetime(c.sandbox.Metadata.GetUid(), c.Metadata.GetName())
}

// StopContainer ends it at once and well, as a program does that heeds SIGTERM.
func (r *Runtime) StopContainer(_ context.Context, id string, _ int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.containers[id]; c != nil {
		r.exit(c, 0)
	}
	return nil
}

// exit ends a container that runs; the lock is held.
func (r *Runtime) exit(c *container, code int32) {
	if c.end != nil {
		c.end.Stop()
	}
	if c.State != criv1.ContainerState_CONTAINER_RUNNING {
		return
	}
	c.State, c.ExitCode, c.FinishedAt = criv1.ContainerState_CONTAINER_EXITED, code, time.Now().UnixNano()
	c.Reason = "Completed"
	if code != 0 {
		c.Reason = "Error"
	}
	r.tell(c.sandbox)
}

// RemoveContainer forgets it.
func (r *Runtime) RemoveContainer(_ context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.containers[id]; c != nil {
		r.exit(c, 137)
		delete(r.containers, id)
	}
	return nil
}

// ListContainers lists the containers that match.
func (r *Runtime) ListContainers(_ context.Context, f *criv1.ContainerFilter) ([]*criv1.Container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*criv1.Container
	for id, c := range r.containers {
		if f.GetId() != "" && f.GetId() != id || f.GetState() != nil && f.GetState().State != c.State ||
			f.GetPodSandboxId() != "" && f.GetPodSandboxId() != c.sandbox.Id || !labelled(c.Labels, f.GetLabelSelector()) {
			continue
		}
		out = append(out,
			&criv1.Container{Id: id, PodSandboxId: c.sandbox.Id, Metadata: c.Metadata,
				Image: c.Image, ImageRef: c.ImageRef,
				State: c.State, CreatedAt: c.CreatedAt, Labels: c.Labels, Annotations: c.Annotations})
	}
	return out, nil
}

// ContainerStatus tells of one container.
func (r *Runtime) ContainerStatus(_ context.Context, id string, _ bool) (*criv1.ContainerStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[id]
	if c == nil {
		return nil, noContainer(id)
	}
	return &criv1.ContainerStatusResponse{
		Status: &criv1.ContainerStatus{Id: id, Metadata: c.Metadata, State: c.State, CreatedAt: c.CreatedAt,
			StartedAt: c.StartedAt, FinishedAt: c.FinishedAt, ExitCode: c.ExitCode, Reason: c.Reason,
			Image: c.Image, ImageRef: c.ImageRef,
			ImageId: c.ImageId, Labels: c.Labels, Annotations: c.Annotations, Resources: c.Resources}}, nil
}

// UpdateContainerResources keeps the new limits.
func (r *Runtime) UpdateContainerResources(_ context.Context, id string, res *criv1.ContainerResources) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[id]
	if c == nil {
		return noContainer(id)
	}
	c.Resources = res
	return nil
}

// ExecSync succeeds without a word, so that exec probes and hooks do.
func (r *Runtime) ExecSync(_ context.Context, id string, _ []string, _ time.Duration) (stdout, stderr []byte, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.containers[id] == nil {
		return nil, nil, noContainer(id)
	}
	return nil, nil, nil
}

// imageBytes is the size of every image.
const imageBytes = 50 << 20

// ImageStatus finds every image present.
func (r *Runtime) ImageStatus(_ context.Context, s *criv1.ImageSpec, _ bool) (*criv1.ImageStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &criv1.ImageStatusResponse{Image: r.image(s.GetImage())}, nil
}

// image is the image of a name; the lock is held.
func (r *Runtime) image(name string) *criv1.Image {
	if img := r.images[name]; img != nil {
		return img
	}
	sum := sha256.Sum256([]byte(name))
	digest := "sha256:" + hex.EncodeToString(sum[:])
	if img := r.images[digest]; img != nil {
		return img
	}
	repo, _, _ := strings.Cut(name, "@")
	img := &criv1.Image{Id: digest, RepoTags: []string{name}, RepoDigests: []string{repo + "@" + digest},
		Size: imageBytes, Uid: &criv1.Int64Value{Value: 65532},
		Spec: &criv1.ImageSpec{Image: name}}
	r.images[name], r.images[digest] = img, img
	return img
}

// PullImage has nothing to pull.
func (r *Runtime) PullImage(_ context.Context, s *criv1.ImageSpec, _ *criv1.AuthConfig,
	_ *criv1.PodSandboxConfig) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.image(s.GetImage()).Id, nil
}

// ListImages lists what containers asked for so far.
func (r *Runtime) ListImages(context.Context, *criv1.ImageFilter) ([]*criv1.Image, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*criv1.Image
	for name, img := range r.images {
		if name != img.Id {
			out = append(out, img)
		}
	}
	return out, nil
}

// RemoveImage does nothing.
func (r *Runtime) RemoveImage(context.Context, *criv1.ImageSpec) error { return nil }

// ImageFsInfo tells of nothing.
func (r *Runtime) ImageFsInfo(context.Context) (*criv1.ImageFsInfoResponse, error) {
	return &criv1.ImageFsInfoResponse{}, nil
}
