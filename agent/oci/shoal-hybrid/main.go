// Command shoal-hybrid calls crun on hosts that have control groups of both versions, at
// which crun gives up: it hides the mount of version 2 in a mount namespace that ends with
// crun, and becomes crun. Volumes still propagate as usual.
//
// It is the interpreter of a file that the agent writes, named crun, whose first line names
// the real one: it gets that, the file's path, and what crun is to do.
package main

import (
	"fmt"
	"os"
	"runtime"

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
	crun := args[1]
	return fmt.Errorf("run %s: %w", crun, unix.Exec(crun, append([]string{crun}, args[own:]...), os.Environ()))
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
