package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/shoal-project/shoal/agent/beneath"
	"github.com/shoal-project/shoal/agent/quota"
)

// Quotas limit what containers write, where the file system of DataDir can: all of a
// container's directory there, so what changes in the root file system, the work of the
// overlay, and the image's own volumes. The kernel writes for an overlay without the
// right to pass limits (CAP_SYS_RESOURCE), so that they bind root in a container too.
type Quotas interface {
	// Take gives a project, the same again where there is one; 0 where directories need
	// none. Give gives it back when no record has it.
	Take(project uint32) (uint32, error)
	Give(project uint32)
	// Mkdir makes a directory that takes at most so many bytes.
	Mkdir(path string, project uint32, bytes int64) error
	// Share limits another directory along with it; quota.ErrNone where that is not on the
	// same file system.
	Share(parent *os.File, name string, project uint32, bytes int64) error
	// Used is what such a directory takes, an error where that cannot be told.
	Used(path string, project uint32, ownUsers bool) (quota.Usage, error)
	// Remove deletes one, and its limit.
	Remove(path string, project uint32) error
}

// takeProject gives a container what it is counted by, before it is recorded.
func (m *Manager) takeProject(c *Container, limit int64) {
	if m.cfg.Quotas == nil || quota.Hard(limit) == 0 {
		return
	}
	project, err := m.cfg.Quotas.Take(c.Project)
	if err != nil {
		m.cfg.Log.Warn("what a container writes has no hard limit; it is measured", "container", c.ID, "err", err)
		return
	}
	c.Project, c.HardLimit = project, quota.Hard(limit)
}

// retake has nobody else be given what a recorded container is counted by.
func (m *Manager) retake(c *Container) {
	if m.cfg.Quotas == nil || c.Project == 0 {
		return
	}
	if _, err := m.cfg.Quotas.Take(c.Project); err != nil {
		m.cfg.Log.Warn("the project of a container may be given to another", "container", c.ID, "err", err)
	}
}

// makeLayer makes the directory of what a container writes, limited where it is to be.
// It starts without a limit too: then what it writes is measured.
func (m *Manager) makeLayer(c *Container) {
	if c.HardLimit == 0 {
		return
	}
	err := m.cfg.Quotas.Mkdir(m.layer(c.ID), c.Project, c.HardLimit)
	if err == nil {
		return
	}
	m.cfg.Log.Warn("what a container writes has no hard limit; it is measured", "container", c.ID, "err", err)
	c.HardLimit = 0
	if err := m.removeLayer(c.ID, c.Project); err != nil {
		m.cfg.Log.Warn("what was made to limit a container is not removed", "container", c.ID, "err", err)
	}
}

// removeLayer removes all that a container wrote. Its project may be unknown, 0.
func (m *Manager) removeLayer(id string, project uint32) error {
	if m.cfg.Quotas == nil {
		return quota.Remove(m.layer(id)) // it was made while there were quotas
	}
	return m.cfg.Quotas.Remove(m.layer(id), project)
}

// giveProject lets others have a container's when its record is gone.
func (m *Manager) giveProject(c *Container) {
	if m.cfg.Quotas != nil && c.Project != 0 {
		m.cfg.Quotas.Give(c.Project)
	}
}

// limitLogs has the directory of a container's logs limited along with what it writes,
// where both are on one file system. A monitor whose log is full drops what it cannot
// write, and goes on.
func (m *Manager) limitLogs(c *Container, root string) error {
	name, err := filepath.Rel(root, filepath.Dir(c.LogPath))
	if err != nil || strings.HasPrefix(name, "..") || filepath.Dir(name) == "." {
		return err // no directory of this container alone
	}
	d, err := beneath.Open(root)
	if err != nil {
		return err
	}
	defer d.Close()
	parent, err := d.OpenDir(filepath.Dir(name), beneath.NoLinks)
	if err != nil {
		return err
	}
	defer parent.Close()
	if err := m.cfg.Quotas.Share(parent, filepath.Base(name), c.Project, c.HardLimit); !errors.Is(err, quota.ErrNone) {
		return err
	}
	return nil
}

// counted is what the file system says that a container wrote; ok is false where nobody
// counts.
func (m *Manager) counted(c *Container) (has quota.Usage, ok bool, err error) {
	if m.cfg.Quotas == nil || c.HardLimit == 0 {
		return quota.Usage{}, false, nil
	}
	users := c.Config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
	has, err = m.cfg.Quotas.Used(m.layer(c.ID), c.Project, len(users.GetUids()) > 0)
	if errors.Is(err, quota.ErrNone) {
		return quota.Usage{}, false, nil
	}
	if err != nil {
		return quota.Usage{}, false, fmt.Errorf("measure writable layer: %w", err)
	}
	return has, true, nil
}
