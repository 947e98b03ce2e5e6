package volume

import (
	"os"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/beneath"
	"github.com/shoal-project/shoal/agent/quota"
)

// Quotas limit directories where the file system can.
type Quotas interface {
	// Take gives a directory's project, the same again where it has one; 0 where
	// directories need none. Give gives it back when no record has it.
	Take(project uint32) (uint32, error)
	Give(project uint32)
	// Mkdir makes a directory that takes at most so many bytes.
	Mkdir(path string, project uint32, bytes int64) error
	// Used is what a directory that Mkdir made takes, an error where that cannot be
	// told: by what projects have it cannot where processes have the node's own users.
	Used(path string, project uint32, ownUsers bool) (quota.Usage, error)
	// Remove deletes one, and its limit. A directory that somebody else made is deleted
	// too; one that is not there is no error.
	Remove(path string, project uint32) error
}

// hardLimit is what an emptyDir on the disk can take, 0 for any.
func hardLimit(v *Volume) int64 {
	src := v.Volume.EmptyDir
	if src == nil || src.Medium != corev1.StorageMediumDefault || src.SizeLimit == nil || src.SizeLimit.Sign() <= 0 {
		return 0
	}
	return quota.Hard(src.SizeLimit.Value())
}

// mkdir makes an emptyDir's directory, limited where that is possible. A pod starts
// without a limit too: then its use is measured.
func (d emptyDirDriver) mkdir(path string, v *Volume) error {
	if limit := hardLimit(v); d.quotas != nil && limit > 0 {
		err := d.quotas.Mkdir(path, v.Project, limit)
		if err == nil {
			return nil
		}
		d.log.Warn("an emptyDir has no hard limit; its use is measured", "pod", v.Pod.Namespace+"/"+v.Pod.Name,
			"volume", v.Volume.Name, "err", err)
		if err := beneath.RemoveAll(path); err != nil {
			return err
		}
	}
	return os.Mkdir(path, 0o700)
}

// takeProject gives a volume what it is counted by, before it is recorded.
func (m *Manager) takeProject(v *Volume) {
	if m.Quotas == nil || hardLimit(v) == 0 {
		return
	}
	project, err := m.Quotas.Take(v.Project)
	if err != nil {
		m.Log.Warn("an emptyDir has no project", "pod", v.Pod.Namespace+"/"+v.Pod.Name, "volume", v.Volume.Name,
			"err", err)
	}
	v.Project = project
}

// giveProject lets others have a volume's when its record is gone.
func (m *Manager) giveProject(v *Volume) {
	if m.Quotas != nil && v.Project != 0 {
		m.Quotas.Give(v.Project)
	}
}

// Used is what a pod's emptyDir takes, where the file system tells that: a little more
// than its files.
func (m *Manager) Used(p *corev1.Pod, name string) (bytes int64, ok bool) {
	v := m.recorded(p.UID, name)
	if m.Quotas == nil || v == nil || hardLimit(v) == 0 {
		return 0, false
	}
	ownUsers := p.Spec.HostUsers != nil && !*p.Spec.HostUsers
	has, err := m.Quotas.Used(v.Path, v.Project, ownUsers)
	return has.Bytes, err == nil
}
