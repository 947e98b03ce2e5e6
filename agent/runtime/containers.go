package runtime

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/shoal-project/shoal/agent/container"
	"github.com/shoal-project/shoal/agent/image"
	"github.com/shoal-project/shoal/agent/logs"
	"github.com/shoal-project/shoal/agent/oci"
	"github.com/shoal-project/shoal/agent/quota"
	"github.com/shoal-project/shoal/agent/sandbox"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// CreateContainer prepares a container in a sandbox.
func (r *Runtime) CreateContainer(ctx context.Context, sandboxID string, config *criv1.ContainerConfig,
	_ *criv1.PodSandboxConfig) (string, error) {
	s, err := r.sandboxes.Get(sandboxID)
	if err != nil {
		return "", toStatus(fmt.Errorf("failed to find sandbox id %q: %w", sandboxID, err))
	}
	if !s.Ready {
		return "", toStatus(fmt.Errorf("sandbox container %q is not running", s.ID))
	}
	if err := r.sandboxes.Check(s); err != nil {
		return "", toStatus(err)
	}
	if config.GetMetadata() == nil {
		return "", toStatus(badRequest("container config must include metadata"))
	}
	req, err := r.request(ctx, s, config)
	if err != nil {
		return "", toStatus(err)
	}
	c, err := r.containers.Create(ctx, req)
	if err != nil {
		return "", toStatus(err)
	}
	return c.ID, nil
}

func (r *Runtime) request(ctx context.Context, s *sandbox.Sandbox,
	config *criv1.ContainerConfig) (container.Request, error) {
	img, err := r.image(ctx, config.GetImage())
	if err != nil {
		return container.Request{}, fmt.Errorf("failed to resolve image %q: %w", config.GetImage().GetImage(), err)
	}
	req := container.Request{
		ID: sandbox.NewID(), SandboxID: s.ID, Handler: s.Handler, Config: config, Sandbox: s.Config,
		Hostname: sandbox.Hostname(s), Cgroup: s.Cgroup,
		Files: oci.Files{ResolvConf: s.ResolvConf(), Hostname: s.HostnameFile(), Hosts: s.HostsFile(), Shm: s.Shm()},
		Image: img,
	}
	if dir := s.Config.GetLogDirectory(); dir != "" && config.GetLogPath() != "" {
		req.LogPath, req.LogRoot = filepath.Join(dir, config.GetLogPath()), filepath.Dir(filepath.Clean(dir))
	}
	if req.Namespaces, req.Target, err = r.namespaces(s, config); err != nil {
		return container.Request{}, err
	}
	if limit := config.GetAnnotations()[quota.AnnotationLimit]; limit != "" {
		if req.Limit, err = strconv.ParseInt(limit, 10, 64); err != nil {
			return container.Request{}, badRequest("annotation %s: %v", quota.AnnotationLimit, err)
		}
	}
	if most := config.GetAnnotations()[logs.AnnotationMax]; most != "" {
		if n, err := strconv.ParseInt(most, 10, 64); err != nil || n <= 0 {
			return container.Request{}, badRequest("annotation %s: %q is no number of bytes", logs.AnnotationMax, most)
		}
	}
	userns, err := sandbox.UserNamespace(s.Config)
	if err != nil {
		return container.Request{}, err
	}
	req.IDs = oci.IDs{UIDs: oci.IDMappings(userns.GetUids()), GIDs: oci.IDMappings(userns.GetGids())}
	for _, m := range config.GetMounts() {
		if m.GetImage().GetImage() == "" {
			continue
		}
		v, err := r.image(ctx, m.GetImage())
		if err != nil {
			return container.Request{}, fmt.Errorf("failed to resolve image volume %q: %w", m.GetImage().GetImage(), err)
		}
		if req.Volumes == nil {
			req.Volumes = map[string]container.Image{}
		}
		req.Volumes[m.GetContainerPath()] = v
	}
	return req, nil
}

// namespaces are those of the sandbox that a container gets, and the container
// whose processes it shall see.
func (r *Runtime) namespaces(s *sandbox.Sandbox, config *criv1.ContainerConfig) (ns oci.Namespaces,
	target string, err error) {
	ns = oci.Namespaces{Net: s.Pins.Net, UTS: s.Pins.UTS, IPC: s.Pins.IPC, User: s.Pins.User}
	opts := config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	switch opts.GetPid() {
	case criv1.NamespaceMode_POD:
		if s.PIDPin == "" {
			return ns, "", badRequest("the sandbox has no shared PID namespace")
		}
		ns.PID = s.PIDPin
	case criv1.NamespaceMode_NODE:
		ns.HostPID = true
	case criv1.NamespaceMode_TARGET:
		if r.cfg.Runtimes[s.Handler].InnerPIDs {
			return ns, "", badRequest("runtime handler %q does not show a container the processes of another: each has a "+
				"kernel of its own", s.Handler)
		}
		c, err := r.containers.Get(opts.GetTargetId())
		if err != nil {
			return ns, "", fmt.Errorf("invalid target container: %w", err)
		}
		if c.State != container.Running || c.SandboxID != s.ID {
			return ns, "", badRequest("target container %q is not running in this sandbox", c.ID)
		}
		target = c.ID
	}
	return ns, target, nil
}

// image finds an image and its layers.
func (r *Runtime) image(ctx context.Context, spec *criv1.ImageSpec) (container.Image, error) {
	img, err := r.images.Find(spec.GetImage())
	if err != nil {
		return container.Image{}, err
	}
	lower, err := r.images.Lower(ctx, img.ChainID)
	if err != nil {
		return container.Image{}, err
	}
	return container.Image{ID: img.ID, Ref: img.Ref(cmp.Or(spec.GetUserSpecifiedImage(), spec.GetImage())),
		ChainID: img.ChainID, Lower: lower, Config: img.Config}, nil
}

// StartContainer runs a created container.
func (r *Runtime) StartContainer(ctx context.Context, id string) error {
	return toStatus(r.containers.Start(ctx, id))
}

// StopContainer ends a container: its stop signal, then after timeout seconds
// SIGKILL. A container that is not there is no error.
func (r *Runtime) StopContainer(ctx context.Context, id string, timeout int64) error {
	err := r.containers.Stop(ctx, id, time.Duration(timeout)*time.Second)
	if errdefs.IsNotFound(err) {
		return nil
	}
	return toStatus(err)
}

// RemoveContainer kills and removes a container. One that is not there is no
// error.
func (r *Runtime) RemoveContainer(ctx context.Context, id string) error {
	c, err := r.containers.Get(id)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return toStatus(err)
	}
	if err := r.containers.Remove(ctx, c.ID); err != nil {
		return toStatus(err)
	}
	r.events.send(r.event(c, criv1.ContainerEventType_CONTAINER_DELETED_EVENT))
	if !r.containers.InUse(c.ChainID) {
		return toStatus(r.images.ReleaseUnused(ctx, c.ChainID))
	}
	return nil
}

var criStates = map[container.State]criv1.ContainerState{
	container.Created: criv1.ContainerState_CONTAINER_CREATED,
	container.Running: criv1.ContainerState_CONTAINER_RUNNING,
	container.Exited:  criv1.ContainerState_CONTAINER_EXITED,
}

// ListContainers lists the containers that match.
func (r *Runtime) ListContainers(_ context.Context, f *criv1.ContainerFilter) ([]*criv1.Container, error) {
	var out []*criv1.Container
	for _, c := range r.containers.Select(func(c *container.Container) bool {
		return (f.GetId() == "" || hasPrefix(c.ID, f.GetId())) &&
			(f.GetPodSandboxId() == "" || hasPrefix(c.SandboxID, f.GetPodSandboxId())) &&
			(f.GetState() == nil || f.GetState().GetState() == criStates[c.State]) &&
			selects(f.GetLabelSelector(), c.Config.GetLabels())
	}) {
		out = append(out, &criv1.Container{
			Id: c.ID, PodSandboxId: c.SandboxID, Metadata: c.Config.GetMetadata(), Image: c.Config.GetImage(),
			ImageRef: c.ImageID, ImageId: c.ImageID,
			State: criStates[c.State], CreatedAt: c.CreatedAt.UnixNano(), Labels: c.Config.GetLabels(),
			Annotations: c.Config.GetAnnotations(),
		})
	}
	return out, nil
}

func hasPrefix(id, prefix string) bool { return strings.HasPrefix(id, prefix) }

// selects tells whether labels have every pair of selector.
func selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// ContainerStatus describes a container.
func (r *Runtime) ContainerStatus(_ context.Context, id string, verbose bool) (*criv1.ContainerStatusResponse, error) {
	c, err := r.containers.Get(id)
	if err != nil {
		return nil, toStatus(err)
	}
	resp := &criv1.ContainerStatusResponse{Status: r.containerStatus(c)}
	if verbose {
		resp.Info = info(
			map[string]any{"sandboxID": c.SandboxID, "pid": c.PID, "monitor": c.Monitor,
				"cgroup": c.Cgroup, "config": c.Config})
	}
	return resp, nil
}

func (r *Runtime) containerStatus(c *container.Container) *criv1.ContainerStatus {
	s := &criv1.ContainerStatus{
		Id: c.ID, Metadata: c.Config.GetMetadata(), State: criStates[c.State], CreatedAt: c.CreatedAt.UnixNano(),
		ExitCode: c.ExitCode, Image: r.imageSpec(c), ImageRef: c.ImageRef,
		ImageId: c.ImageID, Reason: c.Reason, Message: c.Message, Labels: c.Config.GetLabels(),
		Annotations: c.Config.GetAnnotations(),
		Mounts:      c.Config.GetMounts(), LogPath: c.LogPath, StopSignal: stopSignal(c.StopSignal),
		Resources: &criv1.ContainerResources{Linux: c.Config.GetLinux().GetResources()},
		User:      &criv1.ContainerUser{Linux: &criv1.LinuxContainerUser{Uid: int64(c.User.UID), Gid: int64(c.User.GID)}},
	}
	for _, g := range c.User.AdditionalGids {
		s.User.Linux.SupplementalGroups = append(s.User.Linux.SupplementalGroups, int64(g))
	}
	if !c.StartedAt.IsZero() {
		s.StartedAt = c.StartedAt.UnixNano()
	}
	if !c.FinishedAt.IsZero() {
		s.FinishedAt = c.FinishedAt.UnixNano()
	}
	return s
}

func (r *Runtime) imageSpec(c *container.Container) *criv1.ImageSpec {
	asked := c.Config.GetImage()
	return &criv1.ImageSpec{Image: r.imageName(c), Annotations: asked.GetAnnotations(),
		UserSpecifiedImage: asked.GetUserSpecifiedImage()}
}

// imageName is the image's tag if it has one, else what the user wrote.
func (r *Runtime) imageName(c *container.Container) string {
	if img, err := r.images.Find(c.ImageID); err == nil && len(img.Tags) > 0 {
		return img.Tags[0]
	}
	if n := c.Config.GetImage().GetUserSpecifiedImage(); n != "" {
		return n
	}
	return c.Config.GetImage().GetImage()
}

func stopSignal(name string) criv1.Signal {
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	return criv1.Signal(criv1.Signal_value[name])
}

func info(m map[string]any) map[string]string {
	b, err := json.Marshal(m)
	if err != nil {
		return nil
	}
	return map[string]string{"info": string(b)}
}

// UpdateContainerResources changes limits in place.
func (r *Runtime) UpdateContainerResources(_ context.Context, id string, res *criv1.ContainerResources) error {
	return toStatus(r.containers.Update(id, res.GetLinux()))
}

// ReopenContainerLog follows a log rotation.
func (r *Runtime) ReopenContainerLog(ctx context.Context, id string) error {
	return toStatus(r.containers.ReopenLog(ctx, id))
}

// ListImages lists images; a filter names one.
func (r *Runtime) ListImages(_ context.Context, f *criv1.ImageFilter) ([]*criv1.Image, error) {
	if ref := f.GetImage().GetImage(); ref != "" {
		img, err := r.images.Find(ref)
		if err != nil {
			return nil, nil
		}
		return []*criv1.Image{criImage(img)}, nil
	}
	var out []*criv1.Image
	for _, img := range r.images.List() {
		out = append(out, criImage(img))
	}
	return out, nil
}

func criImage(i *image.Image) *criv1.Image {
	out := &criv1.Image{
		Id: i.ID, RepoTags: i.Tags, RepoDigests: i.Digests, Size: uint64(i.Size),
		Spec: &criv1.ImageSpec{Image: i.ID}, Pinned: i.Pinned,
	}
	uid, name := i.User()
	if uid != nil {
		out.Uid = &criv1.Int64Value{Value: *uid}
	}
	out.Username = name
	return out
}

// ImageStatus describes an image; Image is nil for one that is not there.
func (r *Runtime) ImageStatus(ctx context.Context, spec *criv1.ImageSpec,
	verbose bool) (*criv1.ImageStatusResponse, error) {
	img, err := r.images.Find(spec.GetImage())
	if errdefs.IsNotFound(err) && r.awaitImports(ctx) {
		img, err = r.images.Find(spec.GetImage())
	}
	if errdefs.IsNotFound(err) {
		return &criv1.ImageStatusResponse{}, nil
	}
	if err != nil {
		return nil, toStatus(err)
	}
	resp := &criv1.ImageStatusResponse{Image: criImage(img)}
	if verbose {
		resp.Info = info(map[string]any{"chainID": img.ChainID, "imageSpec": map[string]any{"config": img.Config}})
	}
	return resp, nil
}

// PullImage pulls and returns the image's ID.
func (r *Runtime) PullImage(ctx context.Context, spec *criv1.ImageSpec, auth *criv1.AuthConfig,
	_ *criv1.PodSandboxConfig) (string, error) {
	if spec.GetImage() == "" {
		return "", toStatus(badRequest("no image is named"))
	}
	var a *image.Auth
	if auth != nil {
		a = &image.Auth{
			Username: auth.GetUsername(), Password: auth.GetPassword(), Auth: auth.GetAuth(),
			ServerAddress: auth.GetServerAddress(),
			IdentityToken: auth.GetIdentityToken(), RegistryToken: auth.GetRegistryToken(),
		}
	}
	id, err := r.images.Pull(ctx, spec.GetImage(), a)
	return id, toStatus(err)
}

// RemoveImage removes an image with all its names. Containers of it go on.
func (r *Runtime) RemoveImage(ctx context.Context, spec *criv1.ImageSpec) error {
	return toStatus(r.images.Remove(ctx, spec.GetImage(), r.containers.InUse))
}

// ImportImages imports an archive and returns its images' names.
func (r *Runtime) ImportImages(ctx context.Context, file string) ([]string, error) {
	if !filepath.IsAbs(file) {
		return nil, errors.New("the archive's path must be absolute")
	}
	names, err := r.images.Import(ctx, file)
	if err == nil && r.Imported != nil {
		r.Imported()
	}
	return names, err
}
