package oci

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/pkg/cap"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Host is what Spec must know about the machine.
type Host struct {
	CgroupV2     bool
	Capabilities []string // the bounding set of this process: more cannot be given
	OOMScoreAdj  int      // the lowest value that may be given
	Hugetlb      bool     // hugepage limits can be set
	NoHugetlb    string   // why they cannot
	Apparmor     bool
	apparmor     string // the default profile that is loaded, "" = none
}

// ReadHost finds the facts of the running system.
func ReadHost(cgroupV2 bool) (Host, error) {
	h := Host{CgroupV2: cgroupV2, OOMScoreAdj: -1000}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return h, fmt.Errorf("read own capabilities: %w", err)
	}
	bounding, effective := capLine(string(status), "CapBnd:"), capLine(string(status), "CapEff:")
	h.Capabilities, _ = cap.FromBitmap(bounding)
	if effective&(1<<unix.CAP_SYS_RESOURCE) == 0 {
		b, err := os.ReadFile("/proc/self/oom_score_adj")
		if err != nil {
			return h, fmt.Errorf("read own oom_score_adj: %w", err)
		}
		h.OOMScoreAdj, _ = strconv.Atoi(strings.TrimSpace(string(b)))
	}
	h.NoHugetlb = noHugetlb("/sys/fs/cgroup", cgroupV2)
	h.Hugetlb = h.NoHugetlb == ""
	on, _ := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	h.Apparmor = strings.HasPrefix(string(on), "Y")
	return h, nil
}

// noHugetlb tells why huge pages cannot be limited by the groups that are mounted at a place;
// "": they can.
func noHugetlb(groups string, v2 bool) string {
	has := func(dir string) bool {
		controllers, err := os.ReadFile(filepath.Join(groups, dir, "cgroup.controllers"))
		return err == nil && slices.Contains(strings.Fields(string(controllers)), "hugetlb")
	}
	if v2 {
		if has("") {
			return ""
		}
		return "the kernel has no control group controller hugetlb"
	}
	if _, err := os.Stat(filepath.Join(groups, "hugetlb")); err == nil {
		return ""
	}
	if has("unified") {
		return "the host has control groups of both versions, and the controller hugetlb in version 2 alone"
	}
	return "the control group controller hugetlb is not mounted"
}

func capLine(status, key string) uint64 {
	for line := range strings.Lines(status) {
		if v, ok := strings.CutPrefix(line, key); ok {
			n, _ := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			return n
		}
	}
	return 0
}

// HostDevices lists the device nodes below /dev, for privileged containers.
func HostDevices() ([]specs.LinuxDevice, error) { return devicesBelow("/dev", "/dev", "rwm") }

// skippedDev are directories that a container has of its own.
var skippedDev = map[string]bool{
	"/dev/pts": true, "/dev/shm": true, "/dev/fd": true, "/dev/mqueue": true, "/dev/.lxc": true,
	"/dev/.lxd-mounts": true, "/dev/.udev": true,
}

// devicesBelow lists the device at path, or those below it if it is a
// directory, named as they shall be below target.
func devicesBelow(path, target, _ string) ([]specs.LinuxDevice, error) {
	var out []specs.LinuxDevice
	err := filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // devices come and go while we look
		}
		if d.IsDir() {
			if skippedDev[p] {
				return filepath.SkipDir
			}
			return nil
		}
		if p == "/dev/console" || (d.Type()&fs.ModeDevice == 0 && d.Type()&fs.ModeSymlink == 0) {
			return nil
		}
		dev, ok := device(p, target+strings.TrimPrefix(p, path), p == path)
		if ok {
			out = append(out, dev)
		}
		return nil
	})
	return out, err
}

// device describes one node. A symlink is followed only if asked for.
func device(path, target string, follow bool) (specs.LinuxDevice, bool) {
	var st unix.Stat_t
	stat := unix.Lstat
	if follow {
		stat = unix.Stat
	}
	if stat(path, &st) != nil {
		return specs.LinuxDevice{}, false
	}
	kind := map[uint32]string{unix.S_IFCHR: "c", unix.S_IFBLK: "b"}[st.Mode&unix.S_IFMT]
	if kind == "" {
		return specs.LinuxDevice{}, false
	}
	mode := os.FileMode(st.Mode & 0o7777)
	uid, gid := st.Uid, st.Gid
	return specs.LinuxDevice{
		Path: target, Type: kind, Major: int64(unix.Major(uint64(st.Rdev))), Minor: int64(unix.Minor(uint64(st.Rdev))),
		FileMode: &mode, UID: &uid, GID: &gid,
	}, true
}
