package sandbox

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Package pause is the program that starts here: agent/pause says what it
// takes from itself and what it says over its connection.
const (
	// pauseUser is the user and group that it becomes, that of upstream's pause
	// image. In a user namespace it is one of the pod's.
	pauseUser = 65535
	// pauseWait bounds its start, which takes a few milliseconds.
	pauseWait = 30 * time.Second
	// pauseFile is the program's file as the process has it; descriptor 3 is the
	// connection.
	pauseFile = "/proc/self/fd/4"
)

// pauseProgram is the program's file in memory, made when it is first needed
// and sealed: whoever gets at /proc/1/exe in a pod cannot change it, and the
// file on the disk is not in reach from there.
type pauseProgram struct {
	path string
	mu   sync.Mutex
	file *os.File
}

func (p *pauseProgram) open() (*os.File, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.file != nil {
		return p.file, nil
	}
	source, err := os.Open(p.path)
	if err != nil {
		return nil, fmt.Errorf("%w: install shoal-pause beside shoal-agent", err)
	}
	defer source.Close()
	f, err := memfd("shoal-pause")
	if err != nil {
		return nil, err
	}
	if _, err := io.Copy(f, source); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return nil, errors.Join(fmt.Errorf("seal the program: %w", err), f.Close())
	}
	p.file = f
	return f, nil
}

// memfd makes a file in memory that may be run. Kernels before 6.3 do not know
// the flag that says so, and need none.
func memfd(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("make a file in memory for the program (vm.memfd_noexec must not be 2): %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// pause is a process that has taken everything from itself, and ends if the
// agent does not release it.
type pause struct {
	cmd  *exec.Cmd
	line *os.File
}

// startPause starts the program in new namespaces as attr says, and in those of
// the calling thread. It returns when the process is confined.
func (m *Manager) startPause(attr *syscall.SysProcAttr, user int) (*pause, error) {
	p, err := m.pause.start(attr, user)
	if err != nil {
		return nil, fmt.Errorf("start the pod's pause process: %w", err)
	}
	return p, nil
}

func (p *pauseProgram) start(attr *syscall.SysProcAttr, user int) (*pause, error) {
	file, err := p.open()
	if err != nil {
		return nil, err
	}
	mine, other, err := connection()
	if err != nil {
		return nil, err
	}
	defer other.Close()
	attr.Setsid = true
	attr.Cloneflags |= syscall.CLONE_NEWNS
	attr.Credential = &syscall.Credential{} // root of the namespaces, for what it has to do first
	cmd := &exec.Cmd{Path: pauseFile, Args: []string{"/pause"}, Env: []string{},
		Dir: "/", ExtraFiles: []*os.File{other, file}, SysProcAttr: attr}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, mine.Close())
	}
	go cmd.Wait() // ends with the sandbox
	started := &pause{cmd: cmd, line: mine}
	if err := started.confined(user); err != nil {
		started.kill()
		return nil, err
	}
	return started, nil
}

// connection is a pair of sockets, of which the first is the agent's.
func connection() (mine, other *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	if err := unix.SetNonblock(fds[0], true); err != nil { // so that it has deadlines
		return nil, nil, errors.Join(err, unix.Close(fds[0]), unix.Close(fds[1]))
	}
	return os.NewFile(uintptr(fds[0]), "pause"), os.NewFile(uintptr(fds[1]), "pause"), nil
}

// confined tells the process its user and waits until it is harmless.
func (p *pause) confined(user int) error {
	if err := p.line.SetDeadline(time.Now().Add(pauseWait)); err != nil {
		return err
	}
	if _, err := p.line.WriteString(strconv.Itoa(user) + "\n"); err != nil {
		return err
	}
	answer := make([]byte, 256)
	n, err := p.line.Read(answer)
	if err != nil {
		return fmt.Errorf("it does not answer: %w", err)
	}
	if text := string(answer[:n]); text != "ready" {
		return errors.New(text)
	}
	return nil
}

// release lets the process live without the agent.
func (p *pause) release() error {
	_, err := p.line.Write([]byte{1})
	return errors.Join(err, p.line.Close())
}

// kill ends a process that was not released.
func (p *pause) kill() {
	_ = p.line.Close()
	_ = p.cmd.Process.Kill() // gone is as good
}

// pauseUserIn is the highest user up to upstream's that the pod's user
// namespace has, which begins at 0.
func pauseUserIn(u *criv1.UserNamespace) int {
	length := min(u.GetUids()[0].GetLength(), u.GetGids()[0].GetLength())
	return int(min(length-1, pauseUser))
}
