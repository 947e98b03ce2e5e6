package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// diskNode is where a node shows its disks.
type diskNode struct {
	dev, sys string
	// records are where open-iscsi may keep its records, by the distribution.
	records []string
	// wait is how long a disk may take to show itself, and waitPaths the device of all
	// its paths where there are several.
	wait, waitPaths time.Duration
}

// theNode is this machine.
var theNode = diskNode{
	dev: "/dev", sys: "/sys", records: []string{"/etc/iscsi", "/var/lib/iscsi"},
	wait: 30 * time.Second, waitPaths: 10 * time.Second,
}

func (m *Manager) diskNode() diskNode {
	if m.disks != nil {
		return *m.disks
	}
	return theNode
}

// The kernel tells of new devices in /dev. What it tells there alone of, like a part of
// dm-multipath that came later, is looked at again and again.
const lookAgain = time.Second

// await calls look until it finds something, when devices come, for a while.
func (n diskNode) await(ctx context.Context, limit time.Duration, look func() bool) error {
	w, err := fsnotify.NewWatcher()
	if err == nil {
		defer w.Close()
		_ = w.Add(n.dev)                                // as below
		_ = w.Add(filepath.Join(n.dev, "disk/by-path")) // where there is none, we look again
	} else {
		w = &fsnotify.Watcher{} // the kernel gives no more of them: here, too, we look again
	}
	end, again := time.NewTimer(limit), time.NewTicker(lookAgain)
	defer end.Stop()
	defer again.Stop()
	for !look() {
		if err := nextDevice(ctx, w, end.C, again.C); err != nil {
			return err
		}
	}
	return nil
}

// nextDevice waits until something may have come. What else is done in /dev, as each
// write to /dev/null, is no matter.
func nextDevice(ctx context.Context, w *fsnotify.Watcher, end, again <-chan time.Time) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-end:
			return context.DeadlineExceeded
		case e := <-w.Events:
			if !e.Has(fsnotify.Create) {
				continue
			}
		case <-w.Errors:
		case <-again:
		}
		return nil
	}
}

// device is the path of a disk that the kernel calls so.
func (n diskNode) device(disk string) (string, error) {
	path := filepath.Join(n.dev, disk)
	st, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if st.Mode().Type() != fs.ModeDevice { // a character device has one more bit
		return "", fmt.Errorf("%s is no block device", path)
	}
	return path, nil
}

// choose returns the device of a disk that shows itself as those that list tells: that of
// dm-multipath, where it has one, since it works as long as one path does. Where there
// are several paths it is waited for, if the node has the program.
func (n diskNode) choose(ctx context.Context, list func() []string, several bool) (string, error) {
	multipath := ""
	look := func() bool {
		for _, disk := range list() {
			if multipath = n.multipath(disk); multipath != "" {
				return true
			}
		}
		return false
	}
	if _, err := exec.LookPath("multipath"); !look() && several && err == nil {
		if err := n.await(ctx, n.waitPaths, look); err != nil && ctx.Err() != nil {
			return "", err
		}
	}
	if multipath != "" {
		return n.named(ctx, multipath)
	}
	disks := slices.Sorted(slices.Values(list()))
	if len(disks) == 0 {
		return "", errors.New("the disk is gone again")
	}
	return n.named(ctx, disks[0])
}

// named is device of a disk that sysfs shows already: its name in /dev comes a moment
// later.
func (n diskNode) named(ctx context.Context, disk string) (device string, err error) {
	look := func() bool {
		device, err = n.device(disk)
		return !errors.Is(err, fs.ErrNotExist)
	}
	if !look() {
		if late := n.await(ctx, n.waitPaths, look); late != nil {
			return "", errors.Join(err, ctx.Err())
		}
	}
	return device, err
}

// isMultipath tells whether a disk is a device of dm-multipath.
func (n diskNode) isMultipath(disk string) bool {
	return strings.HasPrefix(n.read("block", disk, "dm/uuid"), "mpath-")
}

// multipath is the device of dm-multipath that has a disk, "" for none.
func (n diskNode) multipath(disk string) string {
	if n.isMultipath(disk) {
		return disk
	}
	holders, err := os.ReadDir(filepath.Join(n.sys, "block", disk, "holders"))
	if err != nil {
		return ""
	}
	for _, h := range holders {
		if n.isMultipath(h.Name()) {
			return h.Name()
		}
	}
	return ""
}

// paths are the disks that a device of dm-multipath is made of.
func (n diskNode) paths(disk string) (names []string) {
	parts, err := os.ReadDir(filepath.Join(n.sys, "block", disk, "slaves"))
	if err != nil {
		return nil
	}
	for _, p := range parts {
		names = append(names, p.Name())
	}
	return names
}

// remove has the kernel forget disks: another disk may be there the next time. Those
// that anybody has are left.
func (n diskNode) remove(ctx context.Context, disks []string) error {
	for _, disk := range slices.Clone(disks) {
		m := n.multipath(disk)
		if m == "" {
			continue
		}
		disks = append(disks, n.paths(m)...)
		if out, err := program(ctx, "multipath", "-f", filepath.Join(n.dev, m)); err != nil {
			return fmt.Errorf("multipath -f %s failed: %w: %s", m, err, out)
		}
	}
	slices.Sort(disks)
	for _, disk := range slices.Compact(disks) {
		device, err := n.device(disk)
		if err != nil {
			continue // it is gone, or was never one
		}
		if err := idle(device); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := n.write(filepath.Join("block", disk, "device/delete"), "1"); err != nil {
			return err
		}
	}
	return nil
}

// write tells the kernel something by a file of sysfs.
func (n diskNode) write(name, text string) error {
	f, err := os.OpenFile(filepath.Join(n.sys, name), os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it is gone
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// read is what the kernel tells in a file of sysfs, "" for nothing.
func (n diskNode) read(parts ...string) string {
	data, err := os.ReadFile(filepath.Join(append([]string{n.sys}, parts...)...))
	if err != nil || len(data) > 4096 {
		return ""
	}
	return strings.TrimSpace(string(data))
}
