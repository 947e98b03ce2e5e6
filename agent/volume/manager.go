package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/agent/beneath"
)

// Objects gives the API objects that volumes show.
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
}

// Tokens gives service account tokens and when each should be asked for
// again.
type Tokens interface {
	Token(ctx context.Context, p *v1.Pod, s *v1.ServiceAccountTokenProjection) (token string, renew time.Time, err error)
}

// Manager makes and removes the volumes of the node's pods.
type Manager struct {
	// RootDir is the kubelet's root directory (/var/lib/kubelet).
	RootDir string
	Objects Objects
	Tokens  Tokens
	// Claims may be nil: then no claims are mounted.
	Claims Claims
	// Facts is what downward API volumes tell of the node and the pod.
	Facts func(p *v1.Pod) Facts
	Log   *slog.Logger

	mu   sync.Mutex
	pods map[types.UID]*entry
	wake chan struct{} // tells Run that something is due
}

type entry struct {
	mu  sync.Mutex // one writer of the pod's volumes at a time
	pod *v1.Pod
	// due is when the volumes want to be written again, zero for never: for
	// the earliest token, a changed object, or after a failure.
	due    time.Time
	delay  time.Duration // after the last failure, zero without one
	active bool          // being refreshed
	made   bool          // once: until then the pod's own start tells what is wrong
	gone   bool
}

// Error names the volume that could not be made.
type Error struct {
	Volume string
	Err    error
}

func (e *Error) Error() string {
	return fmt.Sprintf("MountVolume.SetUp failed for volume %q : %v", e.Volume, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Ensure makes every volume of the pod; it may be repeated.
func (m *Manager) Ensure(ctx context.Context, p *v1.Pod) error {
	e := m.entry(p)
	e.mu.Lock()
	defer e.mu.Unlock()
	m.mu.Lock()
	e.pod, e.gone = p, false
	m.mu.Unlock()
	return m.write(ctx, e, false)
}

// Refresh brings what projected volumes show up to date.
func (m *Manager) Refresh(ctx context.Context, p *v1.Pod) error {
	m.mu.Lock()
	e := m.pods[p.UID]
	m.mu.Unlock()
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone {
		return nil
	}
	m.mu.Lock()
	e.pod = p
	m.mu.Unlock()
	return m.write(ctx, e, true)
}

func (m *Manager) entry(p *v1.Pod) *entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.pods[p.UID]
	if e == nil {
		if m.pods == nil {
			m.pods = map[types.UID]*entry{}
		}
		e = &entry{pod: p}
		m.pods[p.UID] = e
	}
	return e
}

// write makes all volumes of an entry, or refreshes those that follow changes:
// then one that fails leaves the others their turn.
func (m *Manager) write(ctx context.Context, e *entry, refresh bool) error {
	var renew time.Time
	var failed error
	for i := range e.pod.Spec.Volumes {
		v := &e.pod.Spec.Volumes[i]
		if refresh && !FromAPI(v) {
			continue
		}
		next, err := m.make(ctx, e.pod, v)
		if err != nil && !refresh {
			return &Error{Volume: v.Name, Err: err}
		}
		if err != nil && (failed == nil || apierrors.IsNotFound(failed)) {
			failed = &Error{Volume: v.Name, Err: err}
		}
		if !next.IsZero() && (renew.IsZero() || next.Before(renew)) {
			renew = next
		}
	}
	m.mu.Lock()
	e.made = true
	m.schedule(e, renew)
	m.mu.Unlock()
	m.notify()
	return failed
}

// FromAPI tells whether a volume shows objects of the API. Containers mount
// these read-only, whatever their mounts say, as the agent writes them.
func FromAPI(v *v1.Volume) bool {
	return v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
}

// make makes one volume; what it returns is when it wants renewal.
func (m *Manager) make(ctx context.Context, p *v1.Pod, v *v1.Volume) (time.Time, error) {
	switch {
	case v.EmptyDir != nil:
		return time.Time{}, m.emptyDir(p, v)
	case v.HostPath != nil:
		return time.Time{}, hostPath(v.HostPath)
	case v.Image != nil:
		return time.Time{}, nil // the runtime mounts it
	case FromAPI(v):
		return m.projection(ctx, p, v)
	case v.PersistentVolumeClaim != nil, v.Ephemeral != nil:
		return time.Time{}, m.claimed(ctx, p, v)
	case v.VolumeSource == (v1.VolumeSource{}):
		return time.Time{}, m.emptyDir(p, v)
	}
	return time.Time{}, fmt.Errorf("%s volumes are not supported by this node yet", kindOf(v))
}

// Path returns where a volume of the pod is on the host.
func (m *Manager) Path(p *v1.Pod, name string) (string, error) {
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if v.Name != name {
			continue
		}
		if v.HostPath != nil {
			return v.HostPath.Path, nil
		}
		if v.PersistentVolumeClaim != nil || v.Ephemeral != nil {
			return m.claimPath(p, v)
		}
		return m.dir(p, v), nil
	}
	return "", fmt.Errorf("volume %q is not in the pod", name)
}

// SubPath binds a part of a volume and returns where.
func (m *Manager) SubPath(p *v1.Pod, s SubPath) (string, error) {
	root, err := m.Path(p, s.Volume)
	if err != nil {
		return "", err
	}
	target := filepath.Join(m.podDir(p.UID), "volume-subpaths", s.Volume, s.Container, fmt.Sprint(s.Index))
	if err := bindSubPath(root, s.Path, target); err != nil {
		return "", fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q: %w", s.Volume, s.Container, err)
	}
	return target, nil
}

// Release unmounts and removes every volume of the pod. What a host path or a
// sub path shows is left alone.
func (m *Manager) Release(_ context.Context, p *v1.Pod) error {
	e := m.entry(p)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gone = true
	dir := m.podDir(p.UID)
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		m.forget(p.UID)
		return nil
	}
	for _, part := range []string{"volume-subpaths", "volumes"} {
		if err := m.remove(filepath.Join(dir, part)); err != nil {
			return err
		}
	}
	m.forget(p.UID)
	return nil
}

// remove unmounts below a directory and removes it only when nothing is
// mounted there any more.
func (m *Manager) remove(dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := UnmountUnder(dir); err != nil {
		return err
	}
	return beneath.RemoveAll(dir)
}

func (m *Manager) forget(uid types.UID) {
	m.mu.Lock()
	delete(m.pods, uid)
	m.mu.Unlock()
}

func (m *Manager) podDir(uid types.UID) string { return filepath.Join(m.RootDir, "pods", string(uid)) }

// dir is a volume's directory, named as the kubelet names it.
func (m *Manager) dir(p *v1.Pod, v *v1.Volume) string {
	plugin := "kubernetes.io~empty-dir"
	switch {
	case v.ConfigMap != nil:
		plugin = "kubernetes.io~configmap"
	case v.Secret != nil:
		plugin = "kubernetes.io~secret"
	case v.DownwardAPI != nil:
		plugin = "kubernetes.io~downward-api"
	case v.Projected != nil:
		plugin = "kubernetes.io~projected"
	}
	return filepath.Join(m.podDir(p.UID), "volumes", plugin, v.Name)
}

func kindOf(v *v1.Volume) string {
	switch {
	case v.CSI != nil:
		return "csi"
	case v.NFS != nil:
		return "nfs"
	case v.ISCSI != nil:
		return "iscsi"
	case v.FC != nil:
		return "fc"
	}
	return "such"
}
