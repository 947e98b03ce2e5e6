// A process of a few system calls: the number of its threads is not worth reading the
// machine's mounts for.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command shoal-hybrid calls crun on hosts that have control groups of both versions, at
// which crun gives up: it hides the mount of version 2 in a mount namespace that ends with
// crun, and becomes crun. Volumes still propagate as usual.
//
// It is the interpreter of a file that the agent writes, named crun, whose first line names
// the real one: it gets that, the file's path, and what crun is to do.
//
// crun makes sure that no container can write to its program (CVE-2019-5736): one that it
// finds on a mount for writing it starts a second time, from one for reading. It is given
// such a mount here, which costs next to nothing, and starts once.
package main

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The hierarchies of version 1 lie in the first, that of version 2 in the second.
const (
	hierarchies = "/sys/fs/cgroup"
	unified     = hierarchies + "/unified"
)

func main() {
	if err := run(os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "shoal-hybrid:", err)
		os.Exit(1)
	}
}

// run returns only with an error. args are the program, crun, the file and crun's own.
func run(args []string) error {
	const own = 3
	if len(args) < own {
		return fmt.Errorf("started with %d arguments: it is not for users, the agent has it call crun", len(args)-1)
	}
	runtime.LockOSThread() // its namespace is what crun gets
	if err := hide(); err != nil {
		return err
	}
	return become(args[1], args[own:])
}

// become makes this process crun; it returns only with an error.
func become(crun string, args []string) error {
	call, env := append([]string{crun}, args...), os.Environ()
	if fd, err := readOnly(crun); err == nil { // not before Linux 5.12: crun sees to it by itself
		_ = execOpen(fd, call, env)
	}
	return fmt.Errorf("run %s: %w", crun, unix.Exec(crun, call, env))
}

// readOnly opens a program on a mount of its own, which nobody else sees and nothing is
// written through. It is closed when another program is run.
func readOnly(program string) (fd int, err error) {
	fd, err = unix.OpenTree(unix.AT_FDCWD, program, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return -1, err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// execOpen is execveat(2) of an open program; it returns only with an error, as of a script,
// whose interpreter could not open it.
func execOpen(fd int, args, env []string) error {
	argv, err := syscall.SlicePtrFromStrings(args)
	if err != nil {
		return err
	}
	envv, err := syscall.SlicePtrFromStrings(env)
	if err != nil {
		return err
	}
	var empty byte
	_, _, errno := unix.RawSyscall6(unix.SYS_EXECVEAT, uintptr(fd), uintptr(unsafe.Pointer(&empty)),
		uintptr(unsafe.Pointer(&argv[0])), uintptr(unsafe.Pointer(&envv[0])), unix.AT_EMPTY_PATH, 0)
	return errno
}

// hide takes the mount of version 2 from a mount namespace of this process's own.
func hide() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	// Where mounts are shared the host's would go too.
	if err := unix.Mount("", hierarchies, "", unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep the host's %s: %w", hierarchies, err)
	}
	if err := unix.Unmount(unified, unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("hide %s: %w", unified, err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(hierarchies, &st); err != nil {
		return fmt.Errorf("look at %s: %w", hierarchies, err)
	}
	if st.Flags&unix.ST_RDONLY == 0 {
		return nil
	}
	// systemd mounts it read-only, and crun makes directories where the mount was.
	if err := unix.Mount("tmpfs", unified, "tmpfs", 0, "size=1m"); err != nil {
		return fmt.Errorf("make %s writable for crun: %w", unified, err)
	}
	return nil
}
