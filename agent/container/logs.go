package container

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/agent/logs"
)

// conmon opens a container's log by its path, and once more after each
// rotation, as root. Pods that have the directory of logs in a volume could
// lead it elsewhere by links. So it gets another path: that of a mount of the
// log's directory in the container's bundle, on which the kernel follows no
// links (mount(2), MS_NOSYMFOLLOW; kernels before 5.10 do not know it).

func (m *Manager) logMount(id string) string { return filepath.Join(m.bundle(id), "log") }

// mountLogs makes the log's directory and the mount of it. Nothing below root,
// the directory of all logs, is followed.
func (m *Manager) mountLogs(c *Container, root string) error {
	if c.LogPath == "" {
		return nil
	}
	dir, err := logs.OpenDir(root, filepath.Dir(c.LogPath))
	if err == nil && c.HardLimit > 0 {
		if err := m.limitLogs(c, root); err != nil {
			m.cfg.Log.Warn("a container's logs have no hard limit; they are measured", "container", c.ID, "err", err)
		}
		dir.Close() // another may be in its place
		dir, err = logs.OpenDir(root, filepath.Dir(c.LogPath))
	}
	if err != nil {
		return fmt.Errorf("log directory: %w", err)
	}
	defer dir.Close()
	at := m.logMount(c.ID)
	if err := os.MkdirAll(at, 0o700); err != nil {
		return fmt.Errorf("log directory: %w", err)
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()), at, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount log directory: %w", err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		return fmt.Errorf("log directory: %w", err)
	}
	// What the mount has already must be said again; statfs(2) has the same bits.
	const kept = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	flags := uintptr(st.Flags)&kept | unix.MS_BIND | unix.MS_REMOUNT | unix.MS_NOSYMFOLLOW
	if err := unix.Mount("", at, "", flags, ""); err != nil {
		return fmt.Errorf("mount log directory without links: %w", err)
	}
	return nil
}

// monitorLog is the log's path for conmon. A container that an agent of before
// created and did not start has no mount.
func (m *Manager) monitorLog(c *Container) string {
	if c.LogPath == "" {
		return "none"
	}
	if at := m.logMount(c.ID); exists(at) {
		return filepath.Join(at, filepath.Base(c.LogPath))
	}
	return c.LogPath
}

// keepLogDir sees to it that a monitor has the directory of its log, which somebody may have
// removed: it would end at the next file that it cannot make there, and its container with it.
// The new directory takes the place of the old one.
func (m *Manager) keepLogDir(c *Container) error {
	at, dir := m.logMount(c.ID), filepath.Dir(c.LogPath)
	if !exists(at) || sameDir(at, dir) {
		return nil
	}
	if c.LogRoot == "" { // made by an agent that did not keep it
		return fmt.Errorf("somebody removed %s: there is a log again when the container is started again", dir)
	}
	if err := unmount(at); err != nil { // nothing can be mounted over what is deleted
		return err
	}
	return m.mountLogs(c, c.LogRoot)
}

func sameDir(a, b string) bool {
	x, err := os.Stat(a)
	y, err2 := os.Stat(b)
	return err == nil && err2 == nil && os.SameFile(x, y)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
