package container

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shoal-project/shoal/agent/oci"
	"golang.org/x/sys/unix"
)

// kernelDirs are where the OCI runtime mounts file systems of the kernel.
var kernelDirs = []string{"proc", "dev", "sys"}

// checkRoot refuses an image in which one of them is no directory. Runtimes
// that follow a link there mount and write beside the container's root
// (runc: CVE-2019-19921, CVE-2026-41579).
func checkRoot(rootfs string) error {
	for _, name := range kernelDirs {
		info, err := os.Lstat(filepath.Join(rootfs, name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("check the image's /%s: %w", name, err)
		}
		if !info.IsDir() {
			return fmt.Errorf("the image's /%s is not a directory: containers of it are not started", name)
		}
	}
	return nil
}

// lxcfs are the files of /proc that may be mounted over, as runc has them.
var lxcfs = map[string]bool{
	"/proc/cpuinfo": true, "/proc/diskstats": true, "/proc/meminfo": true, "/proc/stat": true,
	"/proc/swaps": true, "/proc/uptime": true,
	"/proc/loadavg": true, "/proc/slabinfo": true, "/proc/net/dev": true, "/proc/sys/kernel/ns_last_pid": true,
	"/proc/sys/crypto/fips_enabled": true,
}

// checkMounts refuses volumes in the place of the kernel's file systems: a
// runtime masks paths with the container's /dev/null and writes to its /proc,
// and where both are files of a volume, another container decides what they are
// (CVE-2025-31133, CVE-2025-52881, CVE-2019-16884). The node's own directory of
// that name is no volume that a container could change so.
func checkMounts(rootfs string, mounts []oci.Mount) error {
	for _, m := range mounts {
		p, _, err := resolve(rootfs, m.Container)
		if err != nil {
			return fmt.Errorf("mount at %s: %w", m.Container, err)
		}
		if strings.HasPrefix(p, "/proc/") && !lxcfs[p] {
			return fmt.Errorf("mount at %s: nothing is mounted inside /proc", m.Container)
		}
		if kernelDir(p) && m.Host != p {
			return fmt.Errorf("mount at %s: it would take the place of the container's %s: mount it elsewhere",
				m.Container, p)
		}
	}
	return nil
}

func kernelDir(p string) bool { return slices.Contains(kernelDirs, strings.TrimPrefix(p, "/")) }

// checkWorkingDir refuses a working directory that leads, as it is written or
// by links of the image, through one of /proc's links to what a process has
// open: while a runtime starts the process, these can be the node's
// (CVE-2024-21626).
func checkWorkingDir(rootfs, dir string) error {
	_, inProcess, err := resolve(rootfs, dir)
	if err != nil {
		return fmt.Errorf("working directory %q: %w", dir, err)
	}
	if inProcess {
		return fmt.Errorf("working directory %q leads into a process of /proc", dir)
	}
	return nil
}

// maxLinks is how many links the kernel follows on one path (path_resolution(7)).
const maxLinks = 40

// resolve walks a path as a container of the image will, before anything is
// mounted in it, and tells whether the way leads into a process of /proc. What
// the image has where file systems of the kernel come is not looked at.
func resolve(rootfs, p string) (at string, inProcess bool, err error) {
	at = "/"
	links := 0
	for rest := strings.Split(p, "/"); len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			at = path.Dir(at)
			continue
		}
		at = path.Join(at, name)
		inProcess = inProcess || throughProcess(at)
		if kernelDir("/" + strings.SplitN(at, "/", 3)[1]) {
			continue
		}
		target, err := os.Readlink(filepath.Join(rootfs, at))
		if err != nil {
			continue // no link, or not there
		}
		if links++; links > maxLinks {
			return "", false, unix.ELOOP
		}
		at = path.Dir(at)
		if path.IsAbs(target) {
			at = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return at, inProcess, nil
}

// throughProcess tells whether a clean path goes on below one of /proc's links
// of a process, or of a thread. /dev/fd and the standard streams are links to
// them that every container has.
func throughProcess(p string) bool {
	for _, link := range []string{"/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr"} {
		if p == link || strings.HasPrefix(p, link+"/") {
			return true
		}
	}
	rest, ok := strings.CutPrefix(p, "/proc/")
	if !ok {
		return false
	}
	parts := strings.SplitN(rest, "/", 3)
	if len(parts) < 2 {
		return false
	}
	switch parts[1] {
	case "fd", "cwd", "root", "exe", "map_files", "ns", "task":
		return true
	}
	return false
}

// checkExecDir does the same for a command in a running container, whose links
// and mounts are others by now: the kernel walks them without following the
// links of /proc. The container can change them right after; then the OCI
// runtime has to see it.
func checkExecDir(pid int, dir string) error {
	if throughProcess(path.Clean("/" + dir)) {
		return fmt.Errorf("working directory %q leads into a process of /proc", dir)
	}
	root, err := unix.Open(fmt.Sprintf("/proc/%d/root", pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("root of process %d: %w", pid, err)
	}
	defer unix.Close(root)
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(root, dir, &how)
	if errors.Is(err, unix.ELOOP) {
		return fmt.Errorf("working directory %q leads into a process of /proc, or in a circle", dir)
	}
	if err == nil {
		return unix.Close(fd)
	}
	return nil // the OCI runtime says what else is wrong, and before Linux 5.6 looks alone
}
