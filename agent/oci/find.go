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

// Find returns the installed runtimes: those named "crun" and "runc", and the
// default one under "": crun where it works, as it needs half of runc's time.
// State and a wrapper, if one is needed, are kept in runDir. The wrapper is a file for the
// program hider, shoal-hybrid; without that one it is a shell script, which takes
// some 4 ms more of processor time a call.
func Find(runDir string, hybrid bool, hider string) (map[string]Runtime, error) {
	found := map[string]Runtime{}
	if path, err := lookPath("runc"); err == nil {
		found["runc"] = Runtime{Path: path}
		found[""] = found["runc"]
	}
	if path, err := lookPath("crun"); err == nil {
		if hybrid {
			path, err = wrapCrun(path, filepath.Join(runDir, "bin"), hider)
		}
		if err == nil {
			found["crun"] = Runtime{Path: path}
			found[""] = found["crun"]
		}
	}
	if len(found) == 0 {
		return nil, errors.New("no OCI runtime is installed: install one (on Debian: apt install crun)")
	}
	return found, nil
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
