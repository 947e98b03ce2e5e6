package oci

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// PrivateDir makes a directory of a container, or gives one that is there the
// modes of today: no user of the node enters it but root, so that nobody runs
// a set-user-ID program of an image outside its container. Where the runtime
// mounts as the root of a user namespace, that one may go through it.
func PrivateDir(path string, ids IDs) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	group, mode := uint32(0), uint32(0o700)
	for _, m := range ids.GIDs {
		if m.ContainerID == 0 {
			group, mode = m.HostID, 0o710
		}
	}
	// Nothing is written where nothing changes: the agent starts on a full disk.
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err == nil && st.Gid == group && st.Mode&0o7777 == mode {
		return nil
	}
	return errors.Join(os.Chown(path, -1, int(group)), os.Chmod(path, fs.FileMode(mode)))
}

// KeepPrivate is PrivateDir for a directory that may be gone.
func KeepPrivate(path string, ids IDs) error {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return PrivateDir(path, ids)
}
