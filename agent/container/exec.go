package container

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoal-project/shoal/agent/oci"
	"golang.org/x/sys/unix"
)

// Size is a terminal's size in characters.
type Size struct{ Width, Height uint16 }

// IO are the streams of an exec or attach session; nil ones are not used.
type IO struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	TTY            bool
	Resize         <-chan Size // nil or closed: the size stays
}

// drain is how long output may still come from processes that an ended
// command left in the background.
const drain = 2 * time.Second

// maxSyncOutput bounds what ExecSync keeps of each stream, as containerd does.
const maxSyncOutput = 16 << 20

// ExecSync runs a command and collects its output. A timeout above zero ends
// it with context.DeadlineExceeded.
func (m *Manager) ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration) (stdout, stderr []byte, code int, err error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	var out, errOut limited
	code, err = m.Exec(ctx, id, cmd, IO{Stdout: &out, Stderr: &errOut})
	return out.Bytes(), errOut.Bytes(), code, err
}

// limited is a buffer that drops what is too much.
type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if room := maxSyncOutput - l.Len(); room > 0 {
		l.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// Exec runs a command in a running container and returns its exit code. When
// ctx ends the command is killed.
func (m *Manager) Exec(ctx context.Context, id string, args []string, streams IO) (int, error) {
	s, err := m.find(id)
	if err != nil {
		return 0, err
	}
	c := m.state(s)
	if c.State != Running {
		return 0, fmt.Errorf("container is in %s state: %w", criState(c.State), errdefs.ErrFailedPrecondition)
	}
	if len(args) == 0 {
		return 0, fmt.Errorf("no command to execute: %w", errdefs.ErrInvalidArgument)
	}
	rt, err := m.runtime(c.Handler)
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp(m.bundle(c.ID), "exec-")
	if err != nil {
		return 0, fmt.Errorf("failed to exec in container: %w", err)
	}
	defer os.RemoveAll(dir)
	e := execution{rt: rt, id: c.ID, dir: dir, args: args, io: streams}
	if err := e.writeProcess(filepath.Join(m.bundle(c.ID), "config.json")); err != nil {
		return 0, fmt.Errorf("failed to exec in container: %w", err)
	}
	return m.exec(ctx, e)
}

func criState(s State) string { return "CONTAINER_" + strings.ToUpper(string(s)) }

type execution struct {
	rt   oci.Runtime
	id   string
	dir  string
	args []string
	io   IO
}

func (e execution) logFile() string { return filepath.Join(e.dir, "log") }
func (e execution) pidFile() string { return filepath.Join(e.dir, "pid") }
func (e execution) process() string { return filepath.Join(e.dir, "process.json") }

// writeProcess describes the command: the container's own process with other
// arguments. (By itself crun would run it as root.)
func (e execution) writeProcess(config string) error {
	b, err := os.ReadFile(config)
	if err != nil {
		return err
	}
	var spec struct {
		Process *specs.Process `json:"process"`
	}
	if err := json.Unmarshal(b, &spec); err != nil || spec.Process == nil {
		return fmt.Errorf("read %s: %w", config, err)
	}
	p := spec.Process
	p.Args, p.Terminal = e.args, e.io.TTY
	if e.io.TTY && !slices.ContainsFunc(p.Env, func(v string) bool { return strings.HasPrefix(v, "TERM=") }) {
		p.Env = append(p.Env, "TERM=xterm")
	}
	if b, err = json.Marshal(p); err != nil {
		return err
	}
	return os.WriteFile(e.process(), b, 0o600)
}

// command is the runtime's exec, which stays as the parent of the command,
// passes its streams and exit code on.
func (e execution) command() *exec.Cmd {
	args := append(e.rt.GlobalArgs(e.logFile()), "exec", "--pid-file", e.pidFile(), "--process", e.process(), e.id)
	return exec.Command(e.rt.Path, args...)
}

func (m *Manager) exec(ctx context.Context, e execution) (int, error) {
	cmd := e.command()
	cmd.WaitDelay = drain
	var finish func()
	var err error
	if e.io.TTY {
		finish, err = startTerminal(cmd, e.io)
	} else {
		finish, err = startPipes(cmd, e.io)
	}
	if err != nil {
		return 0, fmt.Errorf("failed to exec in container: %w", err)
	}
	over := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { e.kill(cmd, over) })
	err = cmd.Wait()
	close(over)
	stop()
	finish()
	if ctx.Err() != nil {
		return 0, fmt.Errorf("command %q timed out or was cancelled: %w", e.args, ctx.Err())
	}
	if msg := oci.LastError(e.logFile()); msg != "" {
		return 0, fmt.Errorf("failed to exec in container: failed to start exec: OCI runtime exec failed: %s: unknown", msg)
	}
	var exit *exec.ExitError
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return cmd.ProcessState.ExitCode(), nil
	}
	if !errors.As(err, &exit) {
		return 0, fmt.Errorf("failed to exec in container: %w", err)
	}
	if st, ok := exit.Sys().(syscall.WaitStatus); ok && st.Signaled() {
		return 128 + int(st.Signal()), nil
	}
	return exit.ExitCode(), nil
}

// killPatience is how long a command may take to come up or to go once it
// shall end.
const killPatience = 2 * time.Second

// kill ends the command in the container. The runtime ends with it: it must
// live until then, as nobody else collects the ended command.
func (e execution) kill(cmd *exec.Cmd, over <-chan struct{}) {
	late := time.After(killPatience)
	for tick := time.NewTicker(5 * time.Millisecond); ; { // the runtime tells by a file, without an event
		if pid, err := readPID(e.pidFile()); err == nil {
			_ = unix.Kill(pid, unix.SIGKILL)
			break
		}
		select {
		case <-tick.C:
			continue
		case <-over:
			return
		case <-late:
		}
		break
	}
	select {
	case <-over:
	case <-late:
		_ = cmd.Process.Kill()
	}
}

// startPipes starts a command without a terminal.
func startPipes(cmd *exec.Cmd, streams IO) (finish func(), err error) {
	cmd.Stdout, cmd.Stderr = streams.Stdout, streams.Stderr
	var in io.WriteCloser
	if streams.Stdin != nil {
		if in, err = cmd.StdinPipe(); err != nil {
			return nil, err
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if in != nil {
		// Not waited for: the client's end of input may never come. The
		// stream server closes the stream when the session is over.
		go func() {
			_, _ = io.Copy(in, streams.Stdin)
			in.Close()
		}()
	}
	return func() {}, nil
}

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
	if err := cmd.Start(); err != nil {
		master.Close()
		return nil, err
	}
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
	}, nil
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
