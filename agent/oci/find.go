package oci

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Programs are the runtimes that are installed.
type Programs struct {
	// Named has those named "crun" and "runc", and the default one under "": crun where
	// it works, as it needs half of runc's time.
	Named map[string]Runtime
	// guarded is the directory that crun is run from.
	guarded *os.File
}

// Close lets go of the programs: they must not be run any more.
func (p Programs) Close() error {
	if p.guarded == nil {
		return nil
	}
	return p.guarded.Close()
}

// Find returns the runtimes that are installed. On hybrid hosts what stands for crun is kept
// in runDir: a file for the program hider, shoal-hybrid, or without that one a shell script,
// which takes some 4 ms more of processor time a call.
func Find(runDir string, hybrid bool, hider string) (Programs, error) {
	found := Programs{Named: map[string]Runtime{}}
	if path, err := lookPath("runc"); err == nil {
		found.Named["runc"] = Runtime{Path: path}
		found.Named[""] = found.Named["runc"]
	}
	if path, err := lookPath("crun"); err == nil {
		rt := Runtime{Path: path, From: path}
		if hybrid {
			rt.Path, err = wrapCrun(path, filepath.Join(runDir, "bin"), hider)
			if err == nil && noExec(rt.Path) { // as Debian mounts /run
				rt.Path, found.guarded, err = guard(rt.Path)
			}
		} else if through, guarded, err := guard(path); err == nil { // else crun sees to it
			rt.Path, found.guarded = through, guarded
		}
		if err == nil {
			found.Named["crun"], found.Named[""] = rt, rt
		}
	}
	if len(found.Named) == 0 {
		return Programs{}, errors.New("no OCI runtime is installed: install one (on Debian: apt install crun)")
	}
	return found, nil
}

// noExec tells whether nothing of the mount that a file is on can be run.
func noExec(file string) bool {
	var st unix.Statfs_t
	return unix.Statfs(file, &st) == nil && st.Flags&unix.ST_NOEXEC != 0
}

// guard returns a path by which a program is run from a mount that nothing is written through,
// and that programs can be run from. crun starts itself a second time, from such a mount,
// where it is not on one, so that no container can write to it (CVE-2019-5736): 2 ms of
// processor time at each start and each exec. The mount is of the program's directory, where
// another version of the program may be put at any time. It is in no mount table, and there as
// long as the directory is open.
func guard(program string) (through string, guarded *os.File, err error) {
	dir, name := filepath.Split(program)
	fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return "", nil, err
	}
	guarded = os.NewFile(uintptr(fd), dir)
	// Since Linux 5.12.
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY, Attr_clr: unix.MOUNT_ATTR_NOEXEC}
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr)
	if err == nil {
		through = fmt.Sprintf("/proc/%d/fd/%d/%s", os.Getpid(), fd, name)
		_, err = os.Stat(through)
	}
	if err != nil {
		return "", nil, errors.Join(err, guarded.Close())
	}
	return through, guarded, nil
}

func lookPath(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", exec.ErrNotFound
}

// wrapCrun makes a program that calls crun without the cgroup2 mount of a
// hybrid host, at which crun gives up. The mount is only hidden in a mount
// namespace that ends with crun; volumes still propagate as usual.
func wrapCrun(crun, dir, hider string) (string, error) {
	script := "#!" + hider + " " + crun + "\n"
	if !interprets(hider, script) {
		var err error
		if script, err = crunScript(crun); err != nil {
			return "", err
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "crun")
	if err := os.WriteFile(path+".tmp", []byte(script), 0o755); err != nil {
		return "", err
	}
	return path, os.Rename(path+".tmp", path)
}

// maxFirstLine is how much the kernel reads of a file to find its interpreter in
// (BINPRM_BUF_SIZE in linux/binfmts.h).
const maxFirstLine = 256

// interprets tells whether the kernel can have the program interpret a file of this first
// line: it takes a path without spaces, and one argument.
func interprets(program, line string) bool {
	if !filepath.IsAbs(program) || len(line) >= maxFirstLine || strings.Count(line, " ") != 1 ||
		strings.ContainsAny(line, "\t") {
		return false
	}
	info, err := os.Stat(program)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// crunScript does with the programs of every distribution what shoal-hybrid does.
func crunScript(crun string) (string, error) {
	unshare, err := lookPath("unshare")
	if err != nil {
		return "", err
	}
	umount, err := lookPath("umount")
	if err != nil {
		return "", err
	}
	private := ""
	if shared("/sys/fs/cgroup") { // or the unmount would reach the host
		mount, err := lookPath("mount")
		if err != nil {
			return "", err
		}
		private = mount + " --make-private /sys/fs/cgroup && "
	}
	writable := ""
	if readOnly("/sys/fs/cgroup") { // crun makes directories where the mount was
		mount, err := lookPath("mount")
		if err != nil {
			return "", err
		}
		writable = mount + " -i -t tmpfs -o size=1m tmpfs /sys/fs/cgroup/unified && "
	}
	return fmt.Sprintf("#!/bin/sh\nexec %s --mount --propagation unchanged /bin/sh -c '%s%s -i /sys/fs/cgroup/unified && %sexec %s \"$@\"' crun \"$@\"\n",
		unshare, private, umount, writable, crun), nil
}

// readOnly tells whether the file system is, as systemd mounts it on hybrid
// hosts.
func readOnly(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Flags&unix.ST_RDONLY != 0
}

// shared tells whether mounts at the mount point propagate; unknown is yes.
func shared(point string) bool {
	mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(point))
	return err != nil || len(mounts) == 0 || strings.HasPrefix(mounts[0].Optional, "shared:")
}
