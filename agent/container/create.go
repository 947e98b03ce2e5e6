package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/continuity/fs"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoal-project/shoal/agent/netns"
	"github.com/shoal-project/shoal/agent/oci"
	"github.com/shoal-project/shoal/agent/selinux"
	"golang.org/x/sys/unix"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Request is all that a container is made of.
type Request struct {
	ID         string
	SandboxID  string
	Handler    string
	Config     *criv1.ContainerConfig
	Sandbox    *criv1.PodSandboxConfig
	Hostname   string
	Cgroup     string // the pod's group
	Namespaces oci.Namespaces
	Target     string // the running container whose PID namespace it joins, "" = Namespaces.PID
	Files      oci.Files
	LogPath    string
	LogRoot    string // the directory of all logs: nobody but root changes its path
	Image      Image
	Volumes    map[string]Image // by container path: mounts that are images
	IDs        oci.IDs          // of the pod's user namespace
	// Limit is how many bytes it may write beside its volumes, 0 for any.
	Limit int64
}

// Image is a root file system and its configuration.
type Image struct {
	ID, Ref, ChainID string
	Lower            []string // layer directories, top first
	Config           ocispec.ImageConfig
}

// Create prepares a container: root file system, specification and record.
// No process exists yet.
func (m *Manager) Create(ctx context.Context, req Request) (*Container, error) {
	rt, err := m.runtime(req.Handler)
	if err != nil {
		return nil, err
	}
	c := Container{
		ID: req.ID, SandboxID: req.SandboxID, Handler: m.pinned(req.Handler, rt), Config: req.Config,
		ImageID: req.Image.ID, ImageRef: req.Image.Ref,
		ChainID: req.Image.ChainID, LogPath: req.LogPath, LogRoot: req.LogRoot,
		Cgroup: m.cfg.Cgroups.Driver().Container(req.Cgroup, req.ID),
		State:  Created, CreatedAt: time.Now(),
		StopSignal: oci.Stop(req.Config, req.Image.Config.StopSignal),
	}
	m.cfg.Cgroups.ExpectMove() // by the start that follows
	m.takeProject(&c, req.Limit)
	s := &slot{c: &c, exited: make(chan struct{})}
	// Known before anything is made, so that a crash leaves nothing unknown.
	if err := m.put(s, c); err != nil {
		m.giveProject(&c)
		return nil, err
	}
	m.mu.Lock()
	m.all[c.ID] = s
	m.mu.Unlock()
	profile, err := m.prepare(req, rt, &c)
	if err == nil {
		s.op.Lock()
		s.profile = profile
		s.op.Unlock()
		err = m.put(s, c)
	}
	if err != nil { // a full disk among others: nobody would know the container
		undo := m.Remove(context.WithoutCancel(ctx), c.ID)
		return nil, errors.Join(err, undo)
	}
	m.cfg.OnChange(m.state(s))
	return m.state(s), nil
}

// prepare makes what a container needs. It returns the profile whose translation is not known yet.
func (m *Manager) prepare(req Request, rt oci.Runtime, c *Container) (oci.Profile, error) {
	m.makeLayer(c)
	if err := m.makePrivate(c.ID, req.IDs); err != nil {
		return "", fmt.Errorf("create container: %w", err)
	}
	for _, d := range []string{m.upper(c.ID), filepath.Join(m.layer(c.ID), "work"), m.rootfs(c.ID)} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return "", fmt.Errorf("create container: %w", err)
		}
	}
	if len(req.IDs.UIDs) > 0 {
		if err := checkWay(m.cfg.RunDir); err != nil {
			return "", err
		}
	}
	if err := m.mountLogs(c, req.LogRoot); err != nil {
		return "", err
	}
	if req.Target != "" {
		req.Namespaces.PID = m.pidPin(c.ID)
		if err := m.pinPIDs(req.Target, req.Namespaces.PID); err != nil {
			return "", err
		}
	}
	labels, err := m.labels(req)
	if err != nil {
		return "", err
	}
	if err := m.mountRoot(req, labels.File); err != nil {
		return "", err
	}
	if err := checkRoot(m.rootfs(c.ID)); err != nil {
		return "", err
	}
	user, err := lookupUser(m.rootfs(c.ID), req.Config.GetLinux().GetSecurityContext(), req.Image.Config.User)
	if err != nil {
		return "", err
	}
	c.User = user
	mounts, err := m.mounts(req, labels.File)
	if err != nil {
		return "", err
	}
	if !req.Config.GetLinux().GetSecurityContext().GetPrivileged() {
		if err := checkMounts(m.rootfs(c.ID), mounts); err != nil {
			return "", err
		}
	}
	in := oci.Input{
		ID: c.ID, SandboxID: c.SandboxID, Config: req.Config, Sandbox: req.Sandbox, Image: req.Image.Config,
		User: user, Rootfs: m.rootfs(c.ID),
		CgroupsPath: m.cfg.Cgroups.Driver().OCIPath(c.Cgroup), Hostname: req.Hostname, Namespaces: req.Namespaces,
		Files: req.Files, Mounts: mounts, IDs: req.IDs, Labels: labels, Host: m.cfg.Host,
		OwnKernel: !rt.Direct(),
	}
	if req.Config.GetLinux().GetSecurityContext().GetPrivileged() {
		if in.Devices, err = oci.HostDevices(); err != nil {
			return "", fmt.Errorf("list host devices: %w", err)
		}
	}
	spec, err := oci.Spec(in)
	if err != nil {
		return "", fmt.Errorf("failed to generate container %q spec: %w", c.ID, err)
	}
	if err := checkWorkingDir(m.rootfs(c.ID), spec.Process.Cwd); err != nil {
		return "", err
	}
	m.weigh(spec.Linux.Resources)
	profile := m.filters.Use(rt, spec)
	b, err := json.Marshal(spec)
	if err != nil {
		return "", fmt.Errorf("write container spec: %w", err)
	}
	return profile, os.WriteFile(filepath.Join(m.bundle(c.ID), "config.json"), b, 0o600)
}

// pinPIDs keeps the PID namespace of a running container at a path, where the
// runtime finds it. The target can end before the container starts, and its
// process number go to a process of the node: /proc would then lead to the
// node's PID namespace.
func (m *Manager) pinPIDs(target, at string) error {
	t, err := m.Get(target)
	if err != nil {
		return fmt.Errorf("target container: %w", err)
	}
	if err := netns.Pin(fmt.Sprintf("/proc/%d/ns/pid", t.PID), at); err != nil {
		return fmt.Errorf("PID namespace of the target container %q: %w", t.ID, err)
	}
	same, err := sameProcess(t.PID, t.PIDStart)
	if err != nil {
		return fmt.Errorf("target container %q: %w", t.ID, err)
	}
	if !same { // or what was pinned may be another's
		return fmt.Errorf("target container %q has ended: %w", t.ID, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// checkWay refuses a directory that the root of a user namespace, who is nobody on the
// node, cannot go through to its container: runtimes say of that no more than that some
// permission is denied.
func checkWay(dir string) error {
	const search = 0o001
	for ; ; dir = filepath.Dir(dir) {
		st, err := os.Stat(dir)
		if err != nil {
			return fmt.Errorf("create container: %w", err)
		}
		if st.Mode()&search == 0 {
			return fmt.Errorf("a pod with hostUsers false cannot start: its users may not go through %s (mode %04o) to "+
				"their container; `chmod o+x %s` lets them, or another run directory", dir, st.Mode().Perm(), dir)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

// makePrivate makes the directories that hold all files of a container.
func (m *Manager) makePrivate(id string, ids oci.IDs) error {
	return errors.Join(oci.PrivateDir(m.bundle(id), ids), oci.PrivateDir(m.layer(id), oci.IDs{}))
}

func (m *Manager) mountRoot(req Request, label string) error {
	upper, work := m.upper(req.ID), filepath.Join(m.layer(req.ID), "work")
	if len(req.IDs.UIDs) > 0 {
		if err := os.Chown(upper, int(req.IDs.UIDs[0].HostID), int(req.IDs.GIDs[0].HostID)); err != nil {
			return fmt.Errorf("create container: %w", err)
		}
	}
	options := []string{"upperdir=" + upper, "workdir=" + work}
	if label != "" {
		options = append(options, selinux.MountOption(label))
	}
	return mountLayers(m.rootfs(req.ID), req.Image.Lower, req.IDs, options...)
}

// mountLayers mounts an image's layers with the overlay's options; without any
// it is read-only. The layers' owners are mapped by ids.
func mountLayers(target string, lower []string, ids oci.IDs, options ...string) error {
	mnt := mount.Mount{Type: "overlay", Source: "overlay", Options: append(options, "lowerdir="+strings.Join(lower, ":"))}
	if len(options) == 0 && len(lower) == 1 { // overlay needs two layers
		if len(ids.UIDs) > 0 {
			return mountMapped(lower[0], target, ids, unix.MOUNT_ATTR_RDONLY)
		}
		mnt = mount.Mount{Type: "bind", Source: lower[0], Options: []string{"rbind", "ro"}}
	}
	if len(ids.UIDs) > 0 {
		mnt.Options = append(mnt.Options, "uidmap="+idMap(ids.UIDs), "gidmap="+idMap(ids.GIDs))
	}
	if err := mount.All([]mount.Mount{mnt}, target); err != nil {
		return fmt.Errorf("mount root file system: %w", err)
	}
	return nil
}

// idMap is the form of a mount option.
func idMap(list []specs.LinuxIDMapping) string {
	var maps []string
	for _, e := range list {
		maps = append(maps, fmt.Sprintf("%d:%d:%d", e.ContainerID, e.HostID, e.Size))
	}
	return strings.Join(maps, ",")
}

// mountMapped mounts source at target with its owners mapped. It must not be
// stacked on a bind mount of source: that would propagate to source itself.
func mountMapped(source, target string, ids oci.IDs, attributes uint64) error {
	users, err := mount.GetUsernsFD(idMap(ids.UIDs), idMap(ids.GIDs))
	if err != nil {
		return fmt.Errorf("map owners of %s: %w", source, err)
	}
	defer users.Close()
	if err := mount.IDMapMountWithAttrs(source, target, int(users.Fd()), attributes, 0); err != nil {
		return fmt.Errorf("map owners of %s (its file system may lack ID mapped mounts): %w", source, err)
	}
	return nil
}

// mapOwners makes a volume's owners those that the pod's user namespace maps
// them to, if that is asked for, by another mount of it. Its path is one that
// the container's root may go, who is nobody on the node.
func (m *Manager) mapOwners(id, src string, v *criv1.Mount, i int) (string, error) {
	info, err := os.Stat(src)
	if err != nil {
		return "", fmt.Errorf("map owners of %s: %w", src, err)
	}
	target := filepath.Join(m.bundle(id), fmt.Sprintf("mapped-%d", i))
	if info.IsDir() {
		err = os.MkdirAll(target, 0o755)
	} else {
		err = os.WriteFile(target, nil, 0o644)
	}
	if err != nil {
		return "", fmt.Errorf("map owners of %s: %w", src, err)
	}
	ids := oci.IDs{UIDs: oci.IDMappings(v.GetUidMappings()), GIDs: oci.IDMappings(v.GetGidMappings())}
	if len(ids.UIDs) > 0 {
		return target, mountMapped(src, target, ids, 0)
	}
	if err := unix.Mount(src, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return "", fmt.Errorf("mount %s: %w", src, err)
	}
	return target, nil
}

// mounts resolves the container's volumes to host paths: links are followed,
// missing directories made, images mounted.
func (m *Manager) mounts(req Request, label string) ([]oci.Mount, error) {
	if err := relabelFiles(req.Files, label); err != nil {
		return nil, err
	}
	var out []oci.Mount
	for i, v := range req.Config.GetMounts() {
		src := v.GetHostPath()
		if v.GetImage().GetImage() != "" {
			var err error
			if src, err = m.imageVolume(req, v, i); err != nil {
				return nil, err
			}
		}
		src, err := hostPath(src)
		if err != nil {
			return nil, err
		}
		if v.GetSelinuxRelabel() && label != "" {
			if err := selinux.Relabel(src, label); err != nil {
				return nil, fmt.Errorf("relabel the mount %s: %w", v.GetContainerPath(), err)
			}
		}
		if (len(v.GetUidMappings()) > 0 || len(req.IDs.UIDs) > 0) && v.GetImage().GetImage() == "" {
			if src, err = m.mapOwners(req.ID, src, v, i); err != nil {
				return nil, err
			}
		}
		out = append(out, oci.Mount{
			Host: src, Container: v.GetContainerPath(), ReadOnly: v.GetReadonly() || v.GetImage().GetImage() != "",
			RecursiveReadOnly: v.GetRecursiveReadOnly(), Propagation: v.GetPropagation(),
		})
	}
	if req.Config.GetLinux().GetSecurityContext().GetReadonlyRootfs() {
		own, err := m.declaredVolumes(req, label)
		return append(own, out...), err
	}
	return out, nil
}

func hostPath(src string) (string, error) {
	real, err := filepath.EvalSymlinks(src)
	if err == nil {
		return real, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("failed to resolve symlink %q: %w", src, err)
	}
	if err := os.MkdirAll(src, 0o755); err != nil {
		return "", fmt.Errorf("failed to mkdir %q: %w", src, err)
	}
	return src, nil
}

// imageVolume mounts an image read-only and returns the directory in it.
func (m *Manager) imageVolume(req Request, v *criv1.Mount, i int) (string, error) {
	img, ok := req.Volumes[v.GetContainerPath()]
	if !ok {
		return "", fmt.Errorf("image volume %q: the image is not on the node", v.GetImage().GetImage())
	}
	dir := filepath.Join(m.bundle(req.ID), fmt.Sprintf("image-%d", i))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("image volume: %w", err)
	}
	if err := mountLayers(dir, img.Lower, req.IDs); err != nil {
		return "", err
	}
	sub, err := fs.RootPath(dir, v.GetImageSubPath())
	if err != nil {
		return "", fmt.Errorf("image volume: %w", err)
	}
	if _, err := os.Stat(sub); err != nil {
		return "", fmt.Errorf("image volume: sub path %q: %w", v.GetImageSubPath(), withoutPath(err))
	}
	return sub, nil
}

// withoutPath is an error of a file without its path: that of a try is of another directory
// each time, and its events are not one.
func withoutPath(err error) error {
	var of *os.PathError
	if errors.As(err, &of) {
		return of.Err
	}
	return err
}

// declaredVolumes are the image's own volumes: they stay writable when the
// root is read-only. Otherwise the writable layer serves them.
func (m *Manager) declaredVolumes(req Request, label string) ([]oci.Mount, error) {
	taken := map[string]bool{}
	for _, v := range req.Config.GetMounts() {
		taken[filepath.Clean(v.GetContainerPath())] = true
	}
	var out []oci.Mount
	i := 0
	for path := range req.Image.Config.Volumes {
		if taken[filepath.Clean(path)] {
			continue
		}
		dir := filepath.Join(m.ownVolumes(req.ID), fmt.Sprint(i))
		i++
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("image's volume %s: %w", path, err)
		}
		from, err := fs.RootPath(m.rootfs(req.ID), path)
		if err != nil {
			return nil, fmt.Errorf("image's volume %s: %w", path, err)
		}
		if _, err := os.Stat(from); err == nil {
			if err := fs.CopyDir(dir, from); err != nil {
				return nil, fmt.Errorf("image's volume %s: %w", path, err)
			}
		}
		if label != "" {
			if err := selinux.Relabel(dir, label); err != nil {
				return nil, fmt.Errorf("image's volume %s: %w", path, err)
			}
		}
		if len(req.IDs.UIDs) > 0 { // its root cannot go where the layers are
			if dir, err = m.mapOwners(req.ID, dir, &criv1.Mount{}, len(req.Config.GetMounts())+i); err != nil {
				return nil, err
			}
		}
		out = append(out, oci.Mount{Host: dir, Container: path})
	}
	return out, nil
}

// unmount removes a mount and those stacked on it; none is no error.
func unmount(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err == nil {
			continue
		}
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			return nil
		}
		return fmt.Errorf("unmount %s: %w", path, err)
	}
}
