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

	// What takes the place of the kernel and of the node's drivers (table.go)
	// where nothing is mounted; nil on a node.
	mounts mounter
	rows   []row
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
		if refresh && !m.follows(e.pod, v) {
			continue
		}
		next, err := m.mount(ctx, e.pod, v)
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

// follows tells whether a volume wants to be made again when something changed.
func (m *Manager) follows(p *v1.Pod, v *v1.Volume) bool {
	known, d, err := m.known(p, v)
	return err == nil && d.Follows(known.Source)
}

// mount makes one volume; what it returns is when it wants to be made again.
func (m *Manager) mount(ctx context.Context, p *v1.Pod, v *v1.Volume) (time.Time, error) {
	s, err := m.resolve(ctx, p, v)
	if err != nil {
		return time.Time{}, err
	}
	d, err := find(m.table(), s)
	if err != nil {
		return time.Time{}, err
	}
	made := m.volume(p, s, d)
	if s.Persistent != nil {
		if err := d.Stage(ctx, made); err != nil {
			return time.Time{}, err
		}
	}
	return d.Mount(ctx, p, made)
}

// volume describes a volume that a driver makes.
func (m *Manager) volume(p *v1.Pod, s Source, d row) *Volume {
	return &Volume{
		Pod:    Owner{UID: p.UID, Namespace: p.Namespace, Name: p.Name},
		Source: s,
		Driver: d.name,
		Path:   d.Path(m.podDir(p.UID), s),
	}
}

// known describes a volume without the API.
func (m *Manager) known(p *v1.Pod, v *v1.Volume) (*Volume, row, error) {
	s, ok := m.resolved(p, v)
	if !ok {
		return nil, row{}, fmt.Errorf("volume %q is not ready", v.Name)
	}
	d, err := find(m.table(), s)
	if err != nil {
		return nil, row{}, err
	}
	return m.volume(p, s, d), d, nil
}

// Path returns where a volume of the pod is on the host.
func (m *Manager) Path(p *v1.Pod, name string) (string, error) {
	for i := range p.Spec.Volumes {
		if v := &p.Spec.Volumes[i]; v.Name == name {
			known, _, err := m.known(p, v)
			if err != nil {
				return "", err
			}
			return known.Path, nil
		}
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
	if err := m.mounter().Bind(root, s.Path, target); err != nil {
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
		if err := removeDir(m.mounter(), filepath.Join(dir, part)); err != nil {
			return err
		}
	}
	m.forget(p.UID)
	return nil
}

func (m *Manager) forget(uid types.UID) {
	m.mu.Lock()
	delete(m.pods, uid)
	m.mu.Unlock()
}

func (m *Manager) podDir(uid types.UID) string { return filepath.Join(m.RootDir, "pods", string(uid)) }
