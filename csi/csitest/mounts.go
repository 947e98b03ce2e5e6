package csitest

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Memory is Mounts of volumes that lie in memory, as long as they are staged, or
// published where they are not staged. It needs root.
type Memory struct{}

// Stage implements Mounts.
func (Memory) Stage(_, path string) error {
	return unix.Mount("csitest", path, "tmpfs", 0, "mode=0777")
}

// Publish implements Mounts. A device is one of the machine's: /dev/zero.
func (m Memory) Publish(volume, staged, path string, block bool) error {
	if err := place(path, block); err != nil {
		return err
	}
	switch {
	case block:
		return unix.Mount("/dev/zero", path, "", unix.MS_BIND, "")
	case staged == "":
		return m.Stage(volume, path)
	}
	return unix.Mount(staged, path, "", unix.MS_BIND, "")
}

// Undo implements Mounts.
func (Memory) Undo(path string) error {
	for {
		err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
		switch {
		case errors.Is(err, unix.EINVAL), errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return &os.PathError{Op: "unmount", Path: path, Err: err}
		}
	}
}
