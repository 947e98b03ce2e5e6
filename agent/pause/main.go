// The runtime neither opens nor reads the node's control groups.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

package main

import (
	"errors"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// line is the descriptor of the connection to the agent.
const line = 3

func main() {
	debug.SetGCPercent(-1) // nothing is ever allocated again
	runtime.GOMAXPROCS(1)
	if err := confine(); err != nil {
		_, _ = unix.Write(line, []byte(err.Error()))
		unix.Exit(1)
	}
	if _, err := unix.Write(line, []byte("ready")); err != nil || !released() {
		unix.Exit(1)
	}
	_ = unix.Close(line)
	for {
		_, _, _ = unix.Syscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
}

// released waits for the agent's word; false: the agent has gone before it
// knew of this process for good.
func released() bool {
	n, err := unix.Read(line, make([]byte, 1))
	return err == nil && n == 1
}

// step is one thing that the process takes from itself.
type step struct {
	name string
	do   func() error
}

// confine takes everything from the process. The order matters: each step
// needs what the next ones take.
func confine() error {
	user, err := userID()
	if err != nil {
		return err
	}
	for _, s := range []step{
		// The process is called what its first thread is called, which need not be the one that runs this.
		{"name the process", func() error { return everyThread(unix.SYS_PRCTL, unix.PR_SET_NAME, address(&comm), 0) }},
		{"empty the root file system", emptyRoot},
		{"close descriptors", closeAll},
		{"drop the capability bounding set", dropBounding},
		{"become user " + strconv.Itoa(user), func() error { return become(user) }},
		{"drop capabilities", dropCapabilities},
		{"forbid new privileges", func() error { return everyThread(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0) }},
		{"forbid dumps", func() error { return prctl(unix.PR_SET_DUMPABLE, 0) }},
		{"reset signals", resetSignals},
		{"filter system calls", filter},
	} {
		if err := s.do(); err != nil {
			return failure{s.name, err}
		}
	}
	return nil
}

// failure names the step that failed. (Package fmt would double the program.)
type failure struct {
	step string
	err  error
}

func (f failure) Error() string { return f.step + ": " + f.err.Error() }

// userID reads the first line of the conversation.
func userID() (int, error) {
	buf := make([]byte, 16)
	n, err := unix.Read(line, buf)
	if err != nil {
		return 0, failure{"read the user ID", err}
	}
	return strconv.Atoi(strings.TrimSpace(string(buf[:n])))
}

// emptyRoot makes an empty tmpfs the root file system and unmounts all others
// in this mount namespace. /proc is there on every node with an agent, and
// serves as the place that the tmpfs is mounted at.
func emptyRoot() error {
	const flags = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("pause", "/proc", "tmpfs", flags, "size=4k,nr_inodes=1,mode=555"); err != nil {
		return err
	}
	if err := unix.Chdir("/proc"); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil { // pivot_root(2): the old root lies over the new one
		return err
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return err
	}
	return unix.Chdir("/")
}

// closeAll closes every descriptor but the agent's.
func closeAll() error {
	const most = 1024 // where the kernel has no close_range (before 5.9)
	if unix.CloseRange(0, line-1, 0) == nil && unix.CloseRange(line+1, ^uint(0)>>33, 0) == nil {
		return nil
	}
	for fd := range most {
		if fd != line {
			_ = unix.Close(fd)
		}
	}
	return nil
}

// dropBounding empties the bounding set: the kernel refuses the first number
// that is no capability.
func dropBounding() error {
	for c := uintptr(0); ; c++ {
		if err := everyThread(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0); errors.Is(err, unix.EINVAL) &&
			c > unix.CAP_AUDIT_READ {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// become changes the user for good. Package syscall does it on all threads.
func become(user int) error {
	if err := syscall.Setgroups(nil); err != nil {
		return err
	}
	if err := syscall.Setresgid(user, user, user); err != nil {
		return err
	}
	return syscall.Setresuid(user, user, user)
}

// dropCapabilities empties the sets that a change of the user leaves alone.
func dropCapabilities() error {
	header.Version = unix.LINUX_CAPABILITY_VERSION_3
	return everyThread(unix.SYS_CAPSET, address(&header), address(&none), 0)
}

// everyThread makes the call on each thread: the kernel keeps capabilities
// and the like for each of them.
func everyThread(trap, a1, a2, a3 uintptr) error {
	if _, _, errno := syscall.AllThreadsSyscall(trap, a1, a2, a3); errno != 0 {
		return errno
	}
	return nil
}

func prctl(option int, arg uintptr) error { return unix.Prctl(option, arg, 0, 0, 0) }
