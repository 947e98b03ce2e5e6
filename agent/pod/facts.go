package pod

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/pod/launch"
	"github.com/shoal-project/shoal/agent/record"
	"github.com/shoal-project/shoal/agent/volume"
)

// Volumes tells where the volumes of a pod are on the host.
type Volumes interface {
	// Again makes those again that the node lost since they were made.
	Again(ctx context.Context, p *corev1.Pod) error
	Path(p *corev1.Pod, name string) (string, error)
	SubPath(p *corev1.Pod, s volume.SubPath) (string, error)
	Relabel(p *corev1.Pod, name string) bool
	Group(p *corev1.Pod, name string) (gid int64, ok bool)
}

// Objects gives the ConfigMaps and Secrets that pods refer to. A missing one
// is an apimachinery not-found error.
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
}

// facts is what the worker knows of a container that is to start.
func (w *worker) facts(p *corev1.Pod, o *record.Observed, a Action) *launch.Facts {
	f := &launch.Facts{
		Host:      w.m.Host,
		Pod:       p,
		Container: record.FindContainer(p, a.Name),
		Attempt:   a.Attempt,
		PodIPs:    w.rec.IPs,
	}
	if t := o.Latest(target(p, a.Name)); t != nil {
		f.Target = t.ID
	}
	return f
}

// target names the container whose processes an ephemeral one shall see, "" for none.
func target(p *corev1.Pod, name string) string {
	for i := range p.Spec.EphemeralContainers {
		if e := &p.Spec.EphemeralContainers[i]; e.Name == name {
			return e.TargetContainerName
		}
	}
	return ""
}

// sources answer what a container's spec refers to.
func (m *Manager) sources(ctx context.Context, p *corev1.Pod) launch.Sources {
	s := launch.Sources{
		ConfigMap: func(name string) (*corev1.ConfigMap, error) { return m.Objects.ConfigMap(ctx, p.Namespace, name) },
		Secret:    func(name string) (*corev1.Secret, error) { return m.Objects.Secret(ctx, p.Namespace, name) },
		Services:  func() ([]*corev1.Service, bool) { return m.Services(ctx) },
		Volume:    func(name string) (string, error) { return m.Volumes.Path(p, name) },
		SubPath:   func(s volume.SubPath) (string, error) { return m.Volumes.SubPath(p, s) },
		Relabel:   func(name string) bool { return m.Volumes.Relabel(p, name) },
		Group:     func(name string) (int64, bool) { return m.Volumes.Group(p, name) },
		EnvFile:   func(name, path, key string) (string, error) { return m.envFile(p, name, path, key) },
		CDI:       func(c *corev1.Container) ([]string, error) { return m.Devices(p, c) },
		NodeHosts: func() ([]byte, error) { return os.ReadFile("/etc/hosts") },
	}
	if m.Plugged != nil {
		s.Plugged = func(c *corev1.Container) (*criv1.ContainerConfig, error) { return m.Plugged(ctx, p, c) }
	}
	if m.Pinned != nil {
		s.Pinned = func(c *corev1.Container) launch.Pinned { return m.Pinned(p, c) }
	}
	return s
}

// envFile reads a variable of a file in one of the pod's volumes.
func (m *Manager) envFile(p *corev1.Pod, name, path, key string) (string, error) {
	dir, err := m.Volumes.Path(p, name)
	if err != nil {
		return "", fmt.Errorf("cannot find the volume %q referenced by FileKeyRef", name)
	}
	return volume.EnvFile(dir, path, key)
}

// containerConfig translates a container and makes the files that it mounts.
func (m *Manager) containerConfig(ctx context.Context, f *launch.Facts) (*criv1.ContainerConfig, error) {
	var err error
	if t := target(f.Pod, f.Container.Name); t != "" && f.Target == "" {
		return nil, fmt.Errorf("unable to find target container %v", t)
	}
	if f.Users, err = m.usersOf(f.Pod); err != nil {
		return nil, err
	}
	f.Sources = m.sources(ctx, f.Pod)
	config, files, err := launch.Container(f)
	if err != nil {
		return nil, err
	}
	for i := range files {
		if err := makeFile(&files[i]); err != nil {
			return nil, fmt.Errorf("%s: %w", files[i].Name, err)
		}
	}
	if err := m.makeLogDir(f.Pod, f.Container.Name); err != nil {
		return nil, fmt.Errorf("log directory: %w", err)
	}
	return config, nil
}

// makeFile writes a file in place: containers that run have this very file
// mounted, and may have written it.
func makeFile(f *launch.File) error {
	if err := os.MkdirAll(filepath.Dir(f.Path), 0o750); err != nil {
		return err
	}
	if len(f.Data) > 0 && readHead(f.Path, int64(len(f.Data))+1) == string(f.Data) {
		return nil
	}
	w, err := os.OpenFile(f.Path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, f.Mode)
	if err != nil {
		return err
	}
	_, err = w.Write(f.Data)
	return errors.Join(err, w.Chmod(f.Mode), w.Close())
}

// sandboxConfig translates a pod; warn, unless it is nil, is told of what the pod does not get.
func (m *Manager) sandboxConfig(p *corev1.Pod, attempt uint32, warn func(reason, message string)) (
	*criv1.PodSandboxConfig, error) {
	users, err := m.usersOf(p)
	if err != nil {
		return nil, err
	}
	return launch.Sandbox(&launch.SandboxFacts{
		Host:         m.Host,
		Pod:          p,
		Attempt:      attempt,
		Users:        users,
		NodeResolver: m.nodeResolver,
		Warn:         warn,
	})
}

// nodeResolver reads the node's resolver configuration; a node may have none.
func (m *Manager) nodeResolver() ([]byte, error) {
	if m.Host.ResolvConf == "" {
		return nil, nil
	}
	data, err := os.ReadFile(m.Host.ResolvConf)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}
