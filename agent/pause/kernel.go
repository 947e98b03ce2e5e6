package main

import (
	"errors"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What the kernel gets pointers to: variables of the package never move.
var (
	comm    = [...]byte{'p', 'a', 'u', 's', 'e', 0} // the name that process lists show
	header  unix.CapUserHeader
	none    [2]unix.CapUserData
	handler action
	program unix.SockFprog
)

func address[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }

// action is the beginning of the kernel's struct sigaction, with room for the
// rest; its first word is the handler: 0 the default, 1 ignore.
type action [8]uintptr

// resetSignals undoes the handlers of the Go runtime, which would end the
// process on a signal that a container sent. Children's ends are ignored, so
// that the kernel reaps them (sigaction(2)).
func resetSignals() error {
	const last, sizeOfSet = 64, 8
	for sig := unix.Signal(1); sig <= last; sig++ {
		if sig == unix.SIGKILL || sig == unix.SIGSTOP {
			continue
		}
		handler[0] = 0
		if sig == unix.SIGCHLD {
			handler[0] = 1
		}
		if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), address(&handler), 0,
			sizeOfSet, 0, 0); errno != 0 {
			return errno
		}
	}
	return nil
}

// allowed are the system calls of a Go runtime that sleeps, and those that end
// the conversation with the agent. Without a file, a descriptor or another
// user's process in reach none of them does anything.
var allowed = []uint32{
	unix.SYS_READ, unix.SYS_WRITE, unix.SYS_CLOSE, unix.SYS_PPOLL, unix.SYS_FUTEX, unix.SYS_NANOSLEEP,
	unix.SYS_CLOCK_NANOSLEEP,
	unix.SYS_SCHED_YIELD, unix.SYS_RESTART_SYSCALL, unix.SYS_RT_SIGRETURN, unix.SYS_RT_SIGPROCMASK, unix.SYS_SIGALTSTACK,
	unix.SYS_MMAP, unix.SYS_MUNMAP, unix.SYS_MADVISE, unix.SYS_GETTID, unix.SYS_GETPID, unix.SYS_TGKILL,
	unix.SYS_EXIT, unix.SYS_EXIT_GROUP,
}

// arches are the kernel's names of the machines that the program is built for.
var arches = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}

// filter installs the seccomp filter on all threads.
func filter() error {
	arch, ok := arches[runtime.GOARCH]
	if !ok {
		return errors.New("no filter for " + runtime.GOARCH)
	}
	list := rules(arch)
	program = unix.SockFprog{Len: uint16(len(list)), Filter: &list[0]}
	thread, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_TSYNC, address(&program))
	if errno != 0 {
		return errno
	}
	if thread != 0 { // the one that did not take it
		return unix.EBUSY
	}
	return nil
}

// Offsets in struct seccomp_data (seccomp(2)), on little endian machines.
const (
	dataNumber = 0
	dataArch   = 4
	dataArg0   = 16
)

// rules allow what is in allowed, and threads, but no processes, to be made.
// All else fails with EPERM; a foreign architecture ends the process.
func rules(arch uint32) []unix.SockFilter {
	const (
		load   = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		hasBit = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		result = unix.BPF_RET | unix.BPF_K
	)
	f := []unix.SockFilter{
		{Code: load, K: dataArch},
		{Code: equal, K: arch, Jt: 1},
		{Code: result, K: unix.SECCOMP_RET_KILL_PROCESS},
		{Code: load, K: dataNumber},
	}
	for _, n := range allowed {
		f = append(f, unix.SockFilter{Code: equal, K: n, Jf: 1}, unix.SockFilter{Code: result, K: unix.SECCOMP_RET_ALLOW})
	}
	return append(f,
		unix.SockFilter{Code: equal, K: unix.SYS_CLONE, Jf: 3},
		unix.SockFilter{Code: load, K: dataArg0},
		unix.SockFilter{Code: hasBit, K: unix.CLONE_THREAD, Jf: 1},
		unix.SockFilter{Code: result, K: unix.SECCOMP_RET_ALLOW},
		unix.SockFilter{Code: result, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
	)
}
