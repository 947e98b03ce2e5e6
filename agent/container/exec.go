package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/shoal-project/shoal/agent/oci"
	"github.com/shoal-project/shoal/agent/process"
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

// ExecSync runs a command and collects its output, of each stream the first
// keep bytes. A timeout above zero ends it with context.DeadlineExceeded.
func (m *Manager) ExecSync(ctx context.Context, id string, cmd []string, timeout time.Duration,
	keep int) (stdout, stderr []byte, code int, err error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	out, errOut := process.Output{Limit: keep}, process.Output{Limit: keep}
	code, err = m.Exec(ctx, id, cmd, IO{Stdout: &out, Stderr: &errOut})
	return out.Bytes(), errOut.Bytes(), code, err
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
	e := execution{rt: rt, id: c.ID, pid: c.PID, dir: dir, args: args, io: streams}
	if err := e.writeProcess(filepath.Join(m.bundle(c.ID), "config.json")); err != nil {
		return 0, fmt.Errorf("failed to exec in container: %w", err)
	}
	return m.exec(ctx, e)
}

func criState(s State) string { return "CONTAINER_" + strings.ToUpper(string(s)) }

type execution struct {
	rt   oci.Runtime
	id   string
	pid  int // the container's first process
	dir  string
	args []string
	io   IO
}

func (e execution) logFile() string { return filepath.Join(e.dir, "log") }
func (e execution) pidFile() string { return filepath.Join(e.dir, "pid") }
func (e execution) process() string { return filepath.Join(e.dir, "process.json") }

// innerFile has the command's number in the container's own kernel.
func (e execution) innerFile() string { return filepath.Join(e.dir, "inner-pid") }

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
	if err := checkExecDir(e.pid, p.Cwd); err != nil {
		return err
	}
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
	args := append(e.rt.GlobalArgs(e.logFile()), "exec", "--pid-file", e.pidFile(), "--process", e.process())
	if e.rt.InnerPIDs {
		args = append(args, "--internal-pid-file", e.innerFile())
	}
	args = append(args, e.id)
	return exec.Command(e.rt.Path, args...)
}

func (m *Manager) exec(ctx context.Context, e execution) (int, error) {
	cmd := e.command()
	cmd.WaitDelay = drain
	var finish func()
	var err error
	switch {
	case e.io.TTY && e.rt.HandsOutConsole():
		finish, err = e.startConsole(cmd)
	case e.io.TTY:
		finish, err = startTerminal(cmd, e.io)
	default:
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
		return 0, fmt.Errorf("failed to exec in container: failed to start exec: OCI runtime exec failed: %s: unknown",
			msg)
	}
	var exit *exec.ExitError
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return cmd.ProcessState.ExitCode(), nil
	}
	if !errors.As(err, &exit) {
		return 0, fmt.Errorf("failed to exec in container: %w", err)
	}
	if !exists(e.pidFile()) {
		return 0, fmt.Errorf("failed to exec in container: %s ended before it ran the command: %w",
			e.rt.Installed(), err)
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
			e.killProcess(pid)
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

// killProcess kills the command by its number on the node. Where the container's kernel is
// not the node's, that is the number of the runtime, and the runtime is asked to.
func (e execution) killProcess(pid int) {
	if !e.rt.InnerPIDs {
		_ = unix.Kill(pid, unix.SIGKILL)
		return
	}
	inner, err := readPID(e.innerFile())
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), killPatience)
	defer cancel()
	args := append(e.rt.GlobalArgs(e.logFile()), "kill", "--pid", strconv.Itoa(inner), e.id, "KILL")
	_ = exec.CommandContext(ctx, e.rt.Path, args...).Run() // the command may be gone
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
	if err := process.Start(cmd); err != nil {
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
