package host

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// sysBlock has a link for each block device, by its number.
const sysBlock = "/sys/dev/block"

// Disks are the disks that paths lie on, as MAJOR:MINOR: those that have a queue of
// requests, not the partitions, nor the volumes that the device mapper or md makes of
// them. What has no disk, such as tmpfs, adds none; a path that does not exist is that of
// the directory that it will be in.
func Disks(paths []string) ([]string, error) {
	found := map[string]bool{}
	for _, path := range paths {
		number, err := deviceOf(path)
		if err != nil {
			return nil, fmt.Errorf("disk of %s: %w", path, err)
		}
		if err := addDisks(found, sysBlock, number); err != nil {
			return nil, fmt.Errorf("disk of %s: %w", path, err)
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// deviceOf is the number of the device that holds a path. File systems that may have
// several, such as btrfs, have a made-up one, with major 0; then it is that which was mounted.
func deviceOf(path string) (string, error) {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	for ; errors.Is(err, fs.ErrNotExist) && path != "/"; err = unix.Stat(path, &st) {
		path = filepath.Dir(path)
	}
	if err != nil {
		return "", err
	}
	if unix.Major(st.Dev) != 0 {
		return deviceNumber(st.Dev), nil
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return "", err
	}
	all, err := mountinfo.GetMounts(nil)
	if err != nil {
		return "", err
	}
	m := holder(all, path)
	if m == nil || !strings.HasPrefix(m.Source, "/dev/") || unix.Stat(m.Source, &st) != nil ||
		st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return deviceNumber(st.Dev), nil
	}
	return deviceNumber(st.Rdev), nil
}

func deviceNumber(dev uint64) string { return fmt.Sprintf("%d:%d", unix.Major(dev), unix.Minor(dev)) }

// stacked bounds how many layers of volumes are looked through.
const stacked = 8

// addDisks adds what is below a device, by sysfs.
func addDisks(found map[string]bool, sys, device string) error {
	return addBelow(found, filepath.Join(sys, device), stacked)
}

func addBelow(found map[string]bool, dir string, layers int) error {
	dir, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) { // no block device
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, "partition")); err == nil {
		dir = filepath.Dir(dir)
	}
	below, err := filepath.Glob(filepath.Join(dir, "slaves", "*"))
	if err != nil {
		return err
	}
	if len(below) == 0 {
		name, err := os.ReadFile(filepath.Join(dir, "dev"))
		if err != nil {
			return err
		}
		found[strings.TrimSpace(string(name))] = true
		return nil
	}
	if layers == 0 {
		return fmt.Errorf("%s: more than %d layers of volumes", dir, stacked)
	}
	for _, b := range below {
		if err := addBelow(found, b, layers-1); err != nil {
			return err
		}
	}
	return nil
}
