package container

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/agent/process"
)

// startTerminal starts a command on a terminal of its own; the runtime passes
// its size changes on into the container.
func startTerminal(cmd *exec.Cmd, streams IO) (finish func(), err error) {
	master, slave, err := openPTY()
	if err != nil {
		return nil, err
	}
	defer slave.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	first, resizing := firstSize(streams.Resize)
	if resizing {
		setSize(master, first)
	}
	if err := process.Start(cmd); err != nil {
		master.Close()
		return nil, err
	}
	return relay(master, streams), nil
}

// relay connects a session's streams to a terminal until the returned function
// is called.
func relay(master *os.File, streams IO) (finish func()) {
	copied, over := make(chan struct{}), make(chan struct{})
	if streams.Stdin != nil {
		go io.Copy(master, streams.Stdin) // ends with master or with the client
	}
	go func() {
		defer close(copied)
		if streams.Stdout != nil {
			_, _ = io.Copy(streams.Stdout, master) // ends with EIO when the command has ended
		}
	}()
	go follow(streams.Resize, over, func(s Size) { setSize(master, s) })
	return func() {
		close(over)
		select {
		case <-copied:
		case <-time.After(drain):
		}
		master.Close()
	}
}

// startConsole starts a command whose terminal the runtime hands to us, so
// that it is not the runtime that passes the output on: crun (1.8) puts the
// output of a command that ends at once into its log.
func (e execution) startConsole(cmd *exec.Cmd) (finish func(), err error) {
	l, err := e.listenConsole()
	if err != nil {
		return nil, err
	}
	cmd.Dir = e.dir
	cmd.Args = slices.Insert(cmd.Args, len(cmd.Args)-1, "--console-socket", consoleSocket)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := process.Start(cmd); err != nil {
		l.Close()
		return nil, err
	}
	var (
		session func()
		came    = make(chan struct{})
	)
	go func() {
		defer close(came)
		if master, err := receiveConsole(l); err == nil {
			if first, resizing := firstSize(e.io.Resize); resizing {
				setSize(master, first)
			}
			session = relay(master, e.io)
		}
	}()
	return func() {
		// The runtime has ended: a terminal that it sent waits in the queue. Our
		// own connection behind it ends the wait if it sent none.
		if conn, err := e.dialConsole(); err == nil {
			conn.Close()
		} else {
			l.Close()
		}
		<-came
		l.Close()
		if session != nil {
			session()
		}
	}, nil
}

// consoleSocket is named without its directory, which may be longer than a
// socket's name can be.
const consoleSocket = "console"

func (e execution) listenConsole() (l *net.UnixListener, err error) {
	err = e.atConsole(func(a *net.UnixAddr) error { l, err = net.ListenUnix("unix", a); return err })
	if err != nil {
		return nil, fmt.Errorf("listen for terminal: %w", err)
	}
	l.SetUnlinkOnClose(false) // goes with the directory
	return l, nil
}

func (e execution) dialConsole() (conn *net.UnixConn, err error) {
	err = e.atConsole(func(a *net.UnixAddr) error { conn, err = net.DialUnix("unix", nil, a); return err })
	return conn, err
}

// atConsole calls f with the socket's address in a short form.
func (e execution) atConsole(f func(*net.UnixAddr) error) error {
	dir, err := os.Open(e.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	return f(&net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), consoleSocket), Net: "unix"})
}

// receiveConsole waits for a terminal's descriptor.
func receiveConsole(l *net.UnixListener) (*os.File, error) {
	conn, err := l.AcceptUnix()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	name, rights := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(name, rights)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil || len(messages) == 0 {
		return nil, errors.Join(errors.New("no terminal was sent"), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) == 0 {
		return nil, errors.Join(errors.New("no terminal was sent"), err)
	}
	unix.CloseOnExec(fds[0])
	if err := unix.SetNonblock(fds[0], true); err != nil { // so that Close ends a read
		unix.Close(fds[0])
		return nil, err
	}
	return os.NewFile(uintptr(fds[0]), "terminal"), nil
}

// firstSize takes a size that is there already, so that the command starts
// with it.
func firstSize(ch <-chan Size) (Size, bool) {
	select {
	case s, ok := <-ch:
		return s, ok
	case <-time.After(20 * time.Millisecond): // clients send it at once, if at all
		return Size{}, false
	}
}

func follow(sizes <-chan Size, over <-chan struct{}, set func(Size)) {
	for {
		select {
		case s, ok := <-sizes:
			if !ok {
				return
			}
			set(s)
		case <-over:
			return
		}
	}
}

// openPTY opens a pseudo-terminal, pts(4).
func openPTY() (master, slave *os.File, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open terminal: %w", err)
	}
	n := 0
	conn, err := master.SyscallConn()
	if err == nil {
		cerr := conn.Control(func(fd uintptr) {
			if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err == nil {
				n, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
			}
		})
		err = errors.Join(err, cerr)
	}
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		master.Close()
		return nil, nil, fmt.Errorf("open terminal: %w", err)
	}
	return master, slave, nil
}

func setSize(master *os.File, s Size) {
	conn, err := master.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Control(func(fd uintptr) {
		_ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: s.Height, Col: s.Width})
	})
}
