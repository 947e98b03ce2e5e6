package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// stagingDriver is implemented by drivers that mount what they stage.
type stagingDriver interface {
	// StagedAt is where a volume is mounted for all pods of the node.
	StagedAt(v *Volume) string
}

// Again makes a pod's volumes again of which the node lost one since they were made: who
// unmounted it, or removed its directory, was not this agent. It also makes one that no
// container had before, as that of a debugger may. It is called before a
// container starts, which would write beside its volume, to the node's own disk.
// Containers that run keep what they have.
func (m *Manager) Again(ctx context.Context, p *corev1.Pod) error {
	lost := m.lost(p.UID)
	if len(lost) == 0 && !m.lacks(p) {
		return nil
	}
	e := m.entry(p)
	e.mu.Lock()
	for _, v := range lost {
		if v.CSI != nil {
			v.CSI.published = false
		}
	}
	m.unlock(e)
	for _, v := range lost {
		m.Log.Warn("a volume is not where it was made: it is made again", "pod", p.Namespace+"/"+p.Name,
			"volume", v.Volume.Name, "path", v.Path)
		if m.Event != nil {
			m.Event(p, "", corev1.EventTypeWarning, "VolumeLost", fmt.Sprintf("volume %q was unmounted or removed at "+
				"%s: it is made again for containers that start", v.Volume.Name, v.Path))
		}
	}
	return m.Ensure(ctx, p)
}

// lacks tells whether a container has a volume that was not made with the others, as none
// had it then.
func (m *Manager) lacks(p *corev1.Pod) bool {
	m.mu.Lock()
	e := m.pods[p.UID]
	made := e != nil && e.made
	m.mu.Unlock()
	return made && slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
		return used(p, v.Name) && m.recorded(p.UID, v.Name) == nil
	})
}

// lost are the pod's volumes that were made and are not there any more.
func (m *Manager) lost(uid types.UID) []*Volume {
	m.mu.Lock()
	e := m.pods[uid]
	var made []*Volume
	var wasMounted []bool
	if e != nil && e.made {
		for _, v := range e.volumes {
			made, wasMounted = append(made, v), append(wasMounted, v.mounted)
		}
	}
	m.mu.Unlock()
	var out []*Volume
	for i, v := range made {
		if m.isLost(v, wasMounted[i]) {
			out = append(out, v)
		}
	}
	return out
}

func (m *Manager) isLost(v *Volume, wasMounted bool) bool {
	if wasMounted {
		is, err := m.mounter().Mounted(v.Path)
		return err == nil && !is
	}
	if !strings.HasPrefix(v.Path, m.podDir(v.Pod.UID)+string(filepath.Separator)) {
		return false // not the pod's own
	}
	_, err := os.Lstat(v.Path)
	return errors.Is(err, fs.ErrNotExist)
}

// stands tells whether a volume was made, and is still mounted: its files are the pod's
// since then.
func (v *Volume) stands(m mounter) (bool, error) {
	if !v.mounted {
		return false, nil
	}
	return m.Mounted(v.Path)
}

// usedByOthers tells whether other pods of the node have a volume already.
func (m *Manager) usedByOthers(v *Volume) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.pods {
		for _, o := range e.volumes {
			if o.key() != v.key() && o.ofNode() && o.mounted && o.device() == v.device() {
				return true
			}
		}
	}
	return false
}

// noteMounted keeps in mind whether a volume that was just made is a mount of its own.
func (m *Manager) noteMounted(v *Volume) {
	is := false
	if v.Path != "" {
		is, _ = m.mounter().Mounted(v.Path)
	}
	m.mu.Lock()
	v.mounted = is
	m.mu.Unlock()
}

// stagedAt is where a driver has mounted what it has just staged, "" for nowhere.
func (m *Manager) stagedAt(d driver, v *Volume) string {
	if r, ok := d.(row); ok {
		d = r.driver
	}
	s, ok := d.(stagingDriver)
	if !ok {
		return ""
	}
	path := s.StagedAt(v)
	if is, err := m.mounter().Mounted(path); err != nil || !is {
		return ""
	}
	return path
}

// unstaged tells whether somebody else took away what was mounted at path when it was staged.
func (m *Manager) unstaged(path string) bool {
	if path == "" {
		return false
	}
	is, err := m.mounter().Mounted(path)
	return err == nil && !is
}
