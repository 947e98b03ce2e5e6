package volume

import (
	"context"
	"errors"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
)

// Records keeps the records of volumes over restarts.
type Records interface {
	All() (map[string]*Volume, error)
	Put(key string, v *Volume) error
	Delete(key string) error
}

// noRecords is Records where nothing outlives the agent.
type noRecords struct{}

// All implements Records.
func (noRecords) All() (map[string]*Volume, error) { return nil, nil }

// Put implements Records.
func (noRecords) Put(string, *Volume) error { return nil }

// Delete implements Records.
func (noRecords) Delete(string) error { return nil }

func (m *Manager) records() Records {
	if m.Records != nil {
		return m.Records
	}
	return noRecords{}
}

// key names the record. A volume's name has no underscore.
func (v *Volume) key() string { return string(v.Pod.UID) + "_" + v.Volume.Name }

// volume describes a volume that a driver makes.
func (m *Manager) volume(p *corev1.Pod, s Source, d row) *Volume {
	v := &Volume{
		Pod:    Owner{UID: p.UID, Namespace: p.Namespace, Name: p.Name},
		Source: s,
		Driver: d.name,
		Path:   d.Path(m.podDir(p.UID), s),
	}
	if v.ofStorageDriver() {
		v.CSI = &CSI{}
	}
	return v
}

// same tells whether two records are of one volume. What else the API says of a
// persistent volume may change while it is mounted.
func (v *Volume) same(o *Volume) bool {
	if v.Driver != o.Driver || (v.Persistent == nil) != (o.Persistent == nil) {
		return false
	}
	return v.Persistent == nil ||
		equality.Semantic.DeepEqual(v.Persistent.Spec.PersistentVolumeSource, o.Persistent.Spec.PersistentVolumeSource)
}

// record writes a volume's record: of what is there, its path stays. Another
// volume that was made under this name is undone before.
func (m *Manager) record(ctx context.Context, v *Volume) error {
	old := m.recorded(v.Pod.UID, v.Volume.Name)
	if old != nil && !v.same(old) {
		if err := m.undo(ctx, old); err != nil {
			return err
		}
		old = nil
	}
	if old != nil {
		v.Path, v.Project, v.Label, v.mounted = old.Path, old.Project, old.Label, old.mounted
	} else {
		m.takeProject(v)
	}
	done, err := m.staging(ctx, v)
	if err != nil {
		return err
	}
	defer done()
	if v.Persistent != nil && onePod(v.Persistent) && m.shared(v) {
		return errors.New("volume uses the ReadWriteOncePod access mode and is already in use by another pod")
	}
	if err := m.joinDisk(v); err != nil {
		return err
	}
	return m.keep(v)
}

// onePod tells whether a volume is for one pod alone.
func onePod(v *corev1.PersistentVolume) bool {
	return len(v.Spec.AccessModes) == 1 && v.Spec.AccessModes[0] == corev1.ReadWriteOncePod
}

func (m *Manager) keep(v *Volume) error {
	if err := m.records().Put(v.key(), v); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.pods[v.Pod.UID]
	if e.volumes == nil {
		e.volumes = map[string]*Volume{}
	}
	e.volumes[v.Volume.Name] = v
	return nil
}

// recorded returns a volume by its record, nil for none.
func (m *Manager) recorded(uid types.UID, name string) *Volume {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.pods[uid]; e != nil {
		return e.volumes[name]
	}
	return nil
}

// volumesOf returns the records of a pod's volumes.
func (m *Manager) volumesOf(e *entry) []*Volume {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(e.volumes))
}

// device names what is staged: a driver's volume or a disk, which several
// PersistentVolumes may be, or a PersistentVolume alone.
func (v *Volume) device() string {
	if d := diskOf(v.Source); d != nil {
		return d.key
	}
	csi, mode := v.Persistent.Spec.CSI, v.Persistent.Spec.VolumeMode
	if csi == nil || mode != nil && *mode == corev1.PersistentVolumeBlock { // staged by its name
		return v.Persistent.Name
	}
	return csi.Driver + "^" + csi.VolumeHandle
}

// stage has the volume's driver make it ready on the node.
func (m *Manager) stage(ctx context.Context, d driver, v *Volume) error {
	if !v.ofNode() {
		return nil
	}
	done, err := m.staging(ctx, v)
	if err != nil {
		return err
	}
	defer done()
	m.mu.Lock()
	at, staged := m.staged[v.device()]
	m.mu.Unlock()
	if staged && !m.unstaged(at) {
		return nil
	}
	if err := d.Stage(ctx, v); err != nil {
		return err
	}
	at = m.stagedAt(d, v)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.staged == nil {
		m.staged = map[string]string{}
	}
	m.staged[v.device()] = at
	return nil
}

func (m *Manager) forgetStaged(v *Volume) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.staged, v.device())
}

// undo undoes all that may have been made of a volume; its record goes last.
func (m *Manager) undo(ctx context.Context, v *Volume) error {
	d, err := made(m.table(), v)
	if err != nil {
		return err
	}
	if err := m.setBoot(v, ""); err != nil {
		return err
	}
	if err := d.Unmount(ctx, v); err != nil {
		return err
	}
	done, err := m.staging(ctx, v)
	if err != nil {
		return err
	}
	defer done()
	if v.ofNode() && !m.shared(v) {
		m.forgetStaged(v)
		if err := d.Unstage(ctx, v); err != nil {
			return err
		}
	}
	if err := m.records().Delete(v.key()); err != nil {
		return err
	}
	m.giveProject(v)
	m.mu.Lock()
	delete(m.pods[v.Pod.UID].volumes, v.Volume.Name)
	m.mu.Unlock()
	m.tellInUse(v)
	return nil
}

// staging has what is staged to itself until done is called: who uses it and
// whether it is staged change together. A driver may take long for another pod: that
// is not waited for beyond ctx.
func (m *Manager) staging(ctx context.Context, v *Volume) (done func(), err error) {
	if !v.ofNode() {
		return func() {}, nil
	}
	return m.exclusive(ctx, v.device())
}

// exclusive has what is named so to itself until done is called.
func (m *Manager) exclusive(ctx context.Context, name string) (done func(), err error) {
	mine := make(chan struct{})
	for {
		m.mu.Lock()
		theirs := m.busy[name]
		if theirs == nil {
			break
		}
		m.mu.Unlock()
		select {
		case <-theirs:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	defer m.mu.Unlock()
	if m.busy == nil {
		m.busy = map[string]chan struct{}{}
	}
	m.busy[name] = mine
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.busy, name)
		close(mine)
	}, nil
}

// shared tells whether another record needs what is staged.
func (m *Manager) shared(v *Volume) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.pods {
		for _, o := range e.volumes {
			if o.key() != v.key() && o.ofNode() && o.device() == v.device() {
				return true
			}
		}
	}
	return false
}
