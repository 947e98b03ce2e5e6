package host

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// BlockFileSystem is a mounted file system that has a block device.
type BlockFileSystem struct {
	Device string // as in /dev: vda1, dm-0
	Space  FileSystem
	// Use is what the kernel counts of the device.
	Use DeviceUse
}

// DeviceUse is what went through a block device since it came to be
// (Documentation/admin-guide/iostats.rst).
type DeviceUse struct {
	Read, Written Transfers
	// InFlight are requests that are under way.
	InFlight uint64
	// Busy is the time in which any was, Weighted the sum of the times of all.
	Busy, Weighted time.Duration
}

// Transfers are those in one direction.
type Transfers struct {
	Completed, Merged uint64
	Sectors           uint64 // of 512 bytes, whatever the device's own are
	Time              time.Duration
}

// Bytes is how much was transferred.
func (t Transfers) Bytes() uint64 { return t.Sectors * 512 }

// BlockFileSystems are those that are mounted, each once. It asks none that a program
// serves (FUSE), which may not answer.
func BlockFileSystems() ([]BlockFileSystem, error) {
	use, err := deviceUse(proc)
	if err != nil {
		return nil, err
	}
	all, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, err
	}
	var out []BlockFileSystem
	known := map[string]bool{}
	for _, m := range all {
		number, space := blockDevice(m)
		name, err := os.Readlink(filepath.Join(sysBlock, number))
		if number == "" || known[number] || err != nil {
			continue
		}
		known[number] = true
		out = append(out, BlockFileSystem{Device: filepath.Base(name), Space: space, Use: use[number]})
	}
	return out, nil
}

// blockDevice is the number of a mount's device and the file system's space; "" for what has
// none, and for a mount that another lies over. A mount point may be a pod's, who could put a
// link in the way to it: none is followed.
func blockDevice(m *mountinfo.Info) (number string, space FileSystem) {
	source := m.Major == 0 && strings.HasPrefix(m.Source, "/dev/") // as btrfs: a number for each subvolume
	if strings.HasPrefix(m.FSType, "fuse") || m.Major == 0 && !source {
		return "", space
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, m.Mountpoint,
		&unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return "", space
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	var fs unix.Statfs_t
	if unix.Fstatfs(fd, &fs) != nil {
		return "", space
	}
	if source {
		if unix.Stat(m.Source, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
			return "", space
		}
		return deviceNumber(st.Rdev), spaceOf(&fs)
	}
	if unix.Fstat(fd, &st) != nil || st.Dev != unix.Mkdev(uint32(m.Major), uint32(m.Minor)) {
		return "", space
	}
	return deviceNumber(st.Dev), spaceOf(&fs)
}

// deviceUse reads /proc/diskstats, by the devices' numbers.
func deviceUse(proc string) (map[string]DeviceUse, error) {
	data, err := os.ReadFile(filepath.Join(proc, "diskstats"))
	if err != nil {
		return nil, err
	}
	out := map[string]DeviceUse{}
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) < 14 {
			return nil, fmt.Errorf("unexpected form of /proc/diskstats: %q", line)
		}
		var n [11]uint64 // behind two numbers and a name
		for i := range n {
			if n[i], err = strconv.ParseUint(f[3+i], 10, 64); err != nil {
				return nil, fmt.Errorf("unexpected form of /proc/diskstats: %w", err)
			}
		}
		milliseconds := func(i int) time.Duration { return time.Duration(n[i]) * time.Millisecond }
		out[f[0]+":"+f[1]] = DeviceUse{
			Read:     Transfers{Completed: n[0], Merged: n[1], Sectors: n[2], Time: milliseconds(3)},
			Written:  Transfers{Completed: n[4], Merged: n[5], Sectors: n[6], Time: milliseconds(7)},
			InFlight: n[8],
			Busy:     milliseconds(9),
			Weighted: milliseconds(10),
		}
	}
	return out, nil
}
