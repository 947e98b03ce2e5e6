package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/agent/metrics"
	"github.com/shoal-project/shoal/agent/selinux"
)

// Objects gives the API objects that volumes show.
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
}

// Tokens gives service account tokens and when each should be asked for
// again.
type Tokens interface {
	Token(ctx context.Context, p *corev1.Pod, s *corev1.ServiceAccountTokenProjection) (token string,
		renew time.Time, err error)
	// Bound gives a token for an audience, "" for the API's own, with its times;
	// of how many seconds may be nil for an hour.
	Bound(ctx context.Context, p *corev1.Pod, audience string, seconds *int64) (SavedToken, error)
}

// Manager makes and removes the volumes of the node's pods.
type Manager struct {
	// RootDir is the kubelet's root directory (/var/lib/kubelet).
	RootDir string
	Objects Objects
	Tokens  Tokens
	// Quotas may be nil: then nothing limits an emptyDir but what is measured.
	Quotas Quotas
	// Memory is how much all pods together may take, as the Node's allocatable memory says:
	// an emptyDir in memory is no larger. 0: not known, and the kernel's default holds.
	Memory int64
	// Claims may be nil: then no claims are mounted.
	Claims Claims
	// Records may be nil: then nothing is taken over by the next agent.
	Records Records
	// Facts is what downward API volumes tell of the node and the pod.
	Facts func(p *corev1.Pod) Facts
	// Drivers and Storage may be nil: then there are no volumes of storage drivers.
	Drivers StorageDrivers
	Storage Storage
	// Boot names the time since the machine started: what is mounted ends with it.
	Boot string
	// NodeName is this node's; InUseChanged is called when VolumesInUse changed, and
	// may be nil.
	NodeName     string
	InUseChanged func()
	// Exhausted has a driver asked again how many volumes the node can have, when one
	// was too many; it may be nil.
	Exhausted func(ctx context.Context, driver string)
	// Event tells of a pod and may be nil.
	Event func(p *corev1.Pod, container, kind, reason, message string)
	// Labels makes labels of SELinux; nil on a node without it.
	Labels selinux.Labeler
	// Health has drivers that can do so tell whether something is wrong with volumes:
	// it is asked each minute, and told of in events and measurements.
	Health bool
	// Operations takes how long mounts and unmounts took; nil: nobody asks.
	Operations *metrics.Durations
	Log        *slog.Logger

	mu   sync.Mutex
	pods map[types.UID]*entry
	wake chan struct{} // tells Run that something is due
	// busy are the persistent volumes that staging gave to somebody, by name; each is
	// closed when it is given back.
	busy map[string]chan struct{}
	// staged are the persistent volumes that this agent staged, by name, each with where
	// its driver mounted it for that, "" for nowhere.
	staged map[string]string
	// node is the Node as the API has it; attached is closed when it, or what
	// must be attached, changed, and nil while nobody waits.
	node     *corev1.Node
	attached chan struct{}
	// registered is closed when a storage driver came or went, and nil while nobody
	// waits.
	registered chan struct{}
	// samples are what storage drivers measured, by the keys of records; asking are
	// the goroutines that wait for them.
	samples map[string]*sample
	asking  sync.WaitGroup
	// restored are the pods whose volumes Run takes up again.
	restored []*corev1.Pod

	// What takes the place of the kernel and of the node's drivers (table.go)
	// where nothing is mounted; nil on a node.
	mounts mounter
	rows   []row
	disks  *diskNode
}

type entry struct {
	mu  sync.Mutex // one writer of the pod's volumes at a time
	pod *corev1.Pod
	// newer is the pod as it became while its volumes were being made.
	newer *corev1.Pod
	// volumes are the records, by the volumes' names.
	volumes map[string]*Volume
	// due is when the volumes want to be written again, zero for never: for
	// the earliest token, a changed object, or after a failure.
	due    time.Time
	delay  time.Duration // after the last failure, zero without one
	active bool          // being refreshed
	made   bool          // once: until then the pod's own start tells what is wrong
	gone   bool
}

// Error names the volume that could not be made, and in which step.
type Error struct {
	Volume string
	// Step is empty for SetUp.
	Step string
	Err  error
}

// Steps of a volume that is not attached: nobody does that, or the node has too many.
const (
	stepWait  = "wait"
	stepLimit = "limit"
)

// stepAffinity is the look at whether a volume is for this node.
const stepAffinity = "NodeAffinity check"

func (e *Error) Error() string {
	switch e.Step {
	case "":
		return fmt.Sprintf("MountVolume.SetUp failed for volume %q : %v", e.Volume, e.Err)
	case stepWait:
		return fmt.Sprintf("Unable to attach or mount volumes: unmounted volumes=[%s], unattached volumes=[%s], "+
			"failed to process volumes=[]: %v", e.Volume, e.Volume, e.Err)
	case stepLimit:
		return fmt.Sprintf("Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[%s], "+
			"unattached volumes=[%s], failed to process volumes=[]: %v", e.Volume, e.Volume, e.Err)
	}
	if e.Step == stepGrow {
		return fmt.Sprintf("MountVolume.Setup failed while expanding volume %q : Expander.NodeExpand failed to expand "+
			"the volume : %v", e.Volume, e.Err)
	}
	if e.Map() {
		return fmt.Sprintf("%s failed for volume %q : %v", e.Step, e.Volume, e.Err)
	}
	return fmt.Sprintf("MountVolume.%s failed for volume %q : %v", e.Step, e.Volume, e.Err)
}

// Map tells whether the volume is a device.
func (e *Error) Map() bool { return e.Step == stepMap || e.Step == stepSetUpDevice }

// Rejects tells whether the pod is not to run on this node.
func (e *Error) Rejects() bool { return e.Step == stepLimit }

// Reason is that of the event which tells of the error.
func (e *Error) Reason() string {
	switch {
	case e.Rejects():
		return "VolumeAttachmentLimitExceeded"
	case e.Map():
		return "FailedMapVolume"
	}
	return "FailedMount"
}

// named is the error of a volume: a step that failed names itself.
func (m *Manager) named(p *corev1.Pod, v *corev1.Volume, err error) *Error {
	out := &Error{Volume: v.Name, Err: err}
	var step *Error
	if errors.As(err, &step) {
		out.Step, out.Err = step.Step, step.Err
	}
	if s, ok := m.resolved(p, v); ok && out.Step != stepWait && out.Step != stepLimit {
		out.Volume = specName(s)
	}
	return out
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Ensure makes every volume of the pod; it may be repeated.
func (m *Manager) Ensure(ctx context.Context, p *corev1.Pod) error {
	e := m.entry(p)
	e.mu.Lock()
	defer m.unlock(e)
	m.mu.Lock()
	m.pods[p.UID], e.pod, e.newer, e.gone = e, p, nil, false
	m.mu.Unlock()
	return m.write(ctx, e, starting)
}

// Refresh brings what projected volumes show up to date. Storage drivers may take
// long: a pod with their volumes is left to Run.
func (m *Manager) Refresh(ctx context.Context, p *corev1.Pod) error {
	m.mu.Lock()
	e := m.pods[p.UID]
	later := false
	if e != nil {
		for _, v := range e.volumes {
			later = later || v.ofStorageDriver()
		}
	}
	if later {
		e.newer, e.due = p, time.Now()
	}
	m.mu.Unlock()
	if later {
		m.notify()
		return nil
	}
	return m.update(ctx, p)
}

// update brings up to date what volumes of a pod show. While they are being made
// that is not waited for: it is done after.
func (m *Manager) update(ctx context.Context, p *corev1.Pod) error {
	m.mu.Lock()
	e := m.pods[p.UID]
	m.mu.Unlock()
	if e == nil {
		return nil
	}
	m.mu.Lock()
	e.newer = p
	m.mu.Unlock()
	if !e.mu.TryLock() {
		return nil // who has the lock looks for it when that is given back
	}
	defer m.unlock(e)
	m.mu.Lock()
	if e.newer == p {
		e.newer = nil
	}
	m.mu.Unlock()
	if e.gone {
		return nil
	}
	m.mu.Lock()
	e.pod = p
	m.mu.Unlock()
	return m.write(ctx, e, refreshing)
}

// unlock lets the next write the pod's volumes. What changed meanwhile is due.
func (m *Manager) unlock(e *entry) {
	e.mu.Unlock()
	m.mu.Lock()
	waits := e.newer != nil
	if waits {
		e.due = time.Now()
	}
	m.mu.Unlock()
	if waits {
		m.notify()
	}
}

func (m *Manager) entry(p *corev1.Pod) *entry {
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

// mode is why the volumes of a pod are written.
type mode int

const (
	starting   mode = iota // for a pod that starts
	resuming               // for one that runs since an earlier agent
	refreshing             // for what follows changes
)

// write makes all volumes of an entry, or refreshes those that follow changes:
// then one that fails leaves the others their turn.
func (m *Manager) write(ctx context.Context, e *entry, how mode) error {
	var renew time.Time
	var failed error
	refresh := how == refreshing
	for i := range e.pod.Spec.Volumes {
		v := &e.pod.Spec.Volumes[i]
		if !used(e.pod, v.Name) {
			continue // as upstream: nobody sees it, so that nothing has to be there for it
		}
		mount, old := m.mount, m.recorded(e.pod.UID, v.Name)
		if how == resuming && old != nil {
			m.noteMounted(old)
		}
		// What an earlier agent had a storage driver mount is there.
		if refresh || how == resuming && old != nil && old.ofStorageDriver() {
			mount = m.remount
		}
		begin := time.Now()
		next, err := mount(ctx, e.pod, v)
		if !refresh {
			m.operation("volume_mount", v, m.recorded(e.pod.UID, v.Name), begin, err)
		}
		if err != nil && !refresh {
			return m.named(e.pod, v, err)
		}
		if err != nil && (failed == nil || apierrors.IsNotFound(failed)) {
			failed = m.named(e.pod, v, err)
		}
		renew = sooner(renew, next)
	}
	m.mu.Lock()
	e.made = true
	m.schedule(e, renew)
	m.mu.Unlock()
	m.notify()
	return failed
}

// mount makes one volume; what it returns is when it wants to be made again.
func (m *Manager) mount(ctx context.Context, p *corev1.Pod, v *corev1.Volume) (time.Time, error) {
	s, err := m.resolve(ctx, p, v)
	if err != nil {
		return time.Time{}, err
	}
	d, err := find(m.table(), s)
	if err != nil {
		return time.Time{}, err
	}
	known := m.volume(p, s, d)
	if err := m.describe(ctx, p, known); err != nil {
		return time.Time{}, err
	}
	if err := m.takeLabel(p, known); err != nil {
		return time.Time{}, err
	}
	if err := m.record(ctx, known); err != nil {
		return time.Time{}, err
	}
	m.tellInUse(known)
	if err := m.awaitAttached(ctx, known); err != nil {
		return time.Time{}, err
	}
	var next time.Time
	err = m.awaitDriver(ctx, p, v, func() (err error) {
		if err := m.stage(ctx, d, known); err != nil {
			return err
		}
		next, err = d.Mount(ctx, p, known)
		return err
	})
	if err != nil {
		return next, err
	}
	m.noteMounted(known)
	if err := m.setBoot(known, m.Boot); err != nil {
		return next, err
	}
	again, err := m.grow(ctx, p, known)
	return sooner(next, again), err
}

// setBoot records whether the driver of a volume has published it.
func (m *Manager) setBoot(v *Volume, boot string) error {
	if v.CSI == nil || v.CSI.Boot == boot {
		return nil
	}
	v.CSI.Boot = boot
	return m.keep(v)
}

// sooner is the earlier of two times, of which zero is never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// remount brings up to date what a volume shows, if that changes.
func (m *Manager) remount(ctx context.Context, p *corev1.Pod, v *corev1.Volume) (time.Time, error) {
	known := m.recorded(p.UID, v.Name)
	if known == nil || known.CSI != nil && known.CSI.Boot != m.Boot {
		return time.Time{}, nil // it is made with the pod
	}
	d, err := made(m.table(), known)
	if err != nil {
		return time.Time{}, err
	}
	var next time.Time
	if d.Follows(known.Source) {
		if next, err = d.Mount(ctx, p, known); err != nil {
			return next, err
		}
		m.noteMounted(known)
	}
	again, err := m.grow(ctx, p, known)
	return sooner(next, again), err
}

// Path returns where a volume of the pod is on the host.
func (m *Manager) Path(p *corev1.Pod, name string) (string, error) {
	if v := m.recorded(p.UID, name); v != nil {
		return v.Path, nil
	}
	if slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == name }) {
		return "", fmt.Errorf("volume %q is not ready", name)
	}
	return "", fmt.Errorf("volume %q is not in the pod", name)
}

// annotationGroup is the annotation of a PersistentVolume with the group that its files
// belong to.
const annotationGroup = "pv.beta.kubernetes.io/gid"

// Group is the group whose members are to be those who have a volume of the pod; false: they
// need be in none.
func (m *Manager) Group(p *corev1.Pod, name string) (gid int64, ok bool) {
	v := m.recorded(p.UID, name)
	if v == nil || v.Persistent == nil {
		return 0, false
	}
	gid, err := strconv.ParseInt(v.Persistent.Annotations[annotationGroup], 10, 64)
	return gid, err == nil
}

// SubPath binds a part of a volume and returns where.
func (m *Manager) SubPath(p *corev1.Pod, s SubPath) (string, error) {
	root, err := m.Path(p, s.Volume)
	if err != nil {
		return "", err
	}
	target := filepath.Join(m.podDir(p.UID), "volume-subpaths", s.Volume, s.Container, fmt.Sprint(s.Index))
	if err := m.mounter().Bind(root, s.Path, target); err != nil {
		return "", fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q: %w", s.Volume,
			s.Container, err)
	}
	return target, nil
}

// Release unmounts and removes every volume of the pod, of which it needs no
// more than the UID. What a host path or a sub path shows is left alone.
func (m *Manager) Release(ctx context.Context, p *corev1.Pod) error {
	e := m.entry(p)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gone = true
	dir := m.podDir(p.UID)
	// Parts of volumes first: they keep the volumes busy.
	if err := removeDir(m.mounter(), filepath.Join(dir, "volume-subpaths")); err != nil {
		return err
	}
	var errs []error
	for _, v := range m.volumesOf(e) {
		begin := time.Now()
		err := m.undo(ctx, v)
		m.operation("volume_unmount", &v.Volume, v, begin, err)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := m.sweep(filepath.Join(dir, "volumes")); err != nil {
		return err
	}
	m.forget(p.UID)
	return nil
}

// sweep removes the directory of a pod's volumes, with what no record tells of:
// an agent that kept none made it, or the record is lost.
func (m *Manager) sweep(dir string) error {
	plugins, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, p := range plugins {
		_ = os.Remove(filepath.Join(dir, p.Name())) // mostly empty, and then nothing is mounted there
	}
	if os.Remove(dir) == nil {
		return nil
	}
	return removeDir(m.mounter(), dir)
}

func (m *Manager) forget(uid types.UID) {
	m.mu.Lock()
	delete(m.pods, uid)
	m.mu.Unlock()
}

func (m *Manager) podDir(uid types.UID) string { return filepath.Join(m.RootDir, "pods", string(uid)) }
