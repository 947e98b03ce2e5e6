package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// WatchMounts leaves a token in the channel whenever a file system was mounted, unmounted
// or mounted anew with other options, until ctx ends.
func WatchMounts(ctx context.Context) (<-chan struct{}, error) {
	f, err := os.Open(filepath.Join(proc, "self/mountinfo"))
	if err != nil {
		return nil, err
	}
	end, closed, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	changed := make(chan struct{}, 1)
	context.AfterFunc(ctx, func() { _ = closed.Close() })
	go func() {
		defer f.Close()
		defer end.Close()
		fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLPRI}, {Fd: int32(end.Fd()), Events: unix.POLLIN}}
		for {
			_, err := unix.Poll(fds, -1)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil || fds[1].Revents != 0 {
				return
			}
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}()
	return changed, nil
}

// Mount is the file system that a path is on.
type Mount struct {
	Point  string
	Device string // the kernel's name for it, as in its messages: vda1, dm-0; or what is mounted
	// ReadOnly is how the mount or the file system is, and Failed that the file system
	// lets nothing be written since an error.
	ReadOnly bool
	Failed   bool
}

// MountsOf tells what each path is on; one that does not exist is left out.
func MountsOf(paths []string) (map[string]Mount, error) {
	all, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, err
	}
	out := map[string]Mount{}
	for _, path := range paths {
		resolved, err := filepath.EvalSymlinks(path)
		broken := errors.Is(err, unix.EIO) // XFS answers nothing else once it has shut down
		switch {
		case broken:
			resolved = filepath.Clean(path)
		case err != nil:
			continue
		}
		if found := holder(all, resolved); found != nil {
			m := mountOf(found)
			m.Failed = m.Failed || broken
			out[path] = m
		}
	}
	return out, nil
}

// holder is the mount that a path is on: the one with the longest path, of several at
// one place the last.
func holder(all []*mountinfo.Info, path string) (found *mountinfo.Info) {
	for _, m := range all {
		below := m.Mountpoint == path || m.Mountpoint == "/" || strings.HasPrefix(path, m.Mountpoint+"/")
		if below && (found == nil || len(m.Mountpoint) >= len(found.Mountpoint)) {
			found = m
		}
	}
	return found
}

func mountOf(m *mountinfo.Info) Mount {
	own, whole := strings.Split(m.Options, ","), strings.Split(m.VFSOptions, ",")
	failed := slices.Contains(whole, "emergency_ro") || slices.Contains(whole, "shutdown")
	return Mount{Point: m.Mountpoint, Device: deviceName(m.Source), Failed: failed,
		ReadOnly: slices.Contains(own, "ro") || slices.Contains(whole, "ro")}
}

// deviceName is the kernel's name of a block device.
func deviceName(source string) string {
	var st unix.Stat_t
	if !strings.HasPrefix(source, "/dev/") || unix.Stat(source, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return source
	}
	number := fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	link, err := os.Readlink(filepath.Join("/sys/dev/block", number))
	if err != nil {
		return strings.TrimPrefix(source, "/dev/")
	}
	return filepath.Base(link)
}
