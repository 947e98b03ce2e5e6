package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Restarts of a daemon that ended by itself wait this long, doubling, and start
// over once it has run for a while.
const (
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 5 * time.Second
	longEnough   = 10 * time.Second
)

const (
	// stopTimeout is how long a daemon may take to end.
	stopTimeout = 15 * time.Second
	// supervisorTimeout is that of the supervisor, which ends the daemons, and then all
	// pods: whoever kills it in the middle finds its cleanup at work.
	supervisorTimeout = 2 * time.Minute
)

// daemon is one child process that the supervisor keeps running.
type daemon struct {
	name string // "coordinator", "agent"
	bin  string
	args []string
	dir  string // of pid file and log
	// said reports a fact worth a line to the user.
	said func(format string, args ...any)

	ready chan struct{} // closed when the child first said READY=1
}

func (d *daemon) pidFile() string { return filepath.Join(d.dir, d.name+".pid") }
func (d *daemon) logFile() string { return filepath.Join(d.dir, d.name+".log") }

// run starts the child, and starts it again whenever it ends, until ctx ends;
// then it stops the child and waits for it. A child that ends before it was
// ever ready is an error.
func (d *daemon) run(ctx context.Context) error {
	backoff := firstBackoff
	for wasReady := false; ; {
		started := time.Now()
		ready, err := d.once(ctx)
		if ctx.Err() != nil {
			return nil
		}
		wasReady = wasReady || ready
		if !wasReady {
			return fmt.Errorf("%s did not start: %w%s", d.name, err, tail(d.logFile()))
		}
		if time.Since(started) > longEnough {
			backoff = firstBackoff
		}
		d.said("%s ended (%v); starting it again%s", d.name, err, d.reason(err))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// once runs the child until it ends and tells whether it became ready.
func (d *daemon) once(ctx context.Context) (bool, error) {
	logs, err := os.OpenFile(d.logFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return false, err
	}
	defer logs.Close()
	notify, err := listenNotify(d.dir, d.name)
	if err != nil {
		return false, err
	}
	defer notify.close()
	cmd := exec.Command(d.bin, d.args...)
	cmd.Stdout, cmd.Stderr = logs, logs
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+notify.path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a terminal's Ctrl-C is the supervisor's
	if err := cmd.Start(); err != nil {
		return false, err
	}
	if err := os.WriteFile(d.pidFile(), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600); err != nil {
		d.said("%s: pid file: %v", d.name, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	isReady := false
	for {
		select {
		case <-notify.ready:
			notify.ready, isReady = nil, true
			select {
			case <-d.ready:
			default:
				close(d.ready)
			}
		case err := <-ended:
			_ = os.Remove(d.pidFile())
			if err == nil {
				err = errors.New("exit status 0")
			}
			return isReady, err
		case <-ctx.Done():
			err := stop(cmd.Process, ended)
			_ = os.Remove(d.pidFile())
			return isReady, err
		}
	}
}

// stop ends a child politely, then not.
func stop(p *os.Process, ended <-chan error) error {
	_ = p.Signal(syscall.SIGTERM)
	select {
	case err := <-ended:
		return err
	case <-time.After(stopTimeout):
		_ = p.Kill()
		return <-ended
	}
}

// reason is the last line of a daemon that ended by itself, for its log says
// why; who was killed said nothing.
func (d *daemon) reason(err error) string {
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !exit.Exited() {
		return ""
	}
	text := strings.TrimSpace(logEnd(d.logFile()))
	return ": " + text[strings.LastIndexByte(text, '\n')+1:]
}

// logEnd reads the last kilobytes of a log: it may be large.
func logEnd(file string) string {
	const enough = 8 << 10
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > enough {
		_, _ = f.Seek(-enough, io.SeekEnd)
	}
	data, _ := io.ReadAll(f)
	return string(data)
}

// tail returns the last lines of a log, for an error message.
func tail(file string) string {
	text := strings.TrimSpace(logEnd(file))
	if text == "" {
		return ""
	}
	lines := slices.DeleteFunc(strings.Split(text, "\n"), func(l string) bool { return strings.TrimSpace(l) == "" })
	return "\n  " + strings.Join(lines[max(0, len(lines)-5):], "\n  ") + "\n  (whole log: " + file + ")"
}

// notify is the receiving end of sd_notify(3).
type notify struct {
	path  string
	conn  *net.UnixConn
	ready chan struct{}
}

func listenNotify(dir, name string) (*notify, error) {
	n := &notify{path: filepath.Join(dir, name+".notify"), ready: make(chan struct{})}
	_ = os.Remove(n.path) // left by a supervisor that was killed
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: n.path, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("notify socket: %w", err)
	}
	n.conn = conn
	go n.read(n.ready)
	return n, nil
}

func (n *notify) read(ready chan struct{}) {
	buf := make([]byte, 4096)
	for told := false; ; {
		size, err := n.conn.Read(buf)
		if err != nil {
			return
		}
		for line := range strings.Lines(string(buf[:size])) {
			if strings.TrimSpace(line) == "READY=1" && !told {
				told = true
				close(ready)
			}
		}
	}
}

func (n *notify) close() {
	_ = n.conn.Close()
	_ = os.Remove(n.path)
}

// running returns the process of a pid file, or nil when the file is absent or
// stale: the pid is gone or belongs to another program by now.
func running(pidFile, program string) *os.Process {
	data, err := os.ReadFile(pidFile)
	if err != nil {
		return nil
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return nil
	}
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil || strings.TrimSuffix(filepath.Base(exe), " (deleted)") != program {
		return nil
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return nil
	}
	return p
}

// end stops a process that is not our child and returns when it has ended, though
// its parent may not have reaped it yet: in a container nobody may ever do so. It is
// killed when it takes longer than patience.
func end(ctx context.Context, p *os.Process, patience time.Duration) error {
	fd, err := unix.PidfdOpen(p.Pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", p.Pid, err)
	}
	ended := make(chan struct{})
	go func() {
		defer unix.Close(fd)
		defer close(ended)
		for { // a descriptor of a process can be read when it has ended
			_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
			if !errors.Is(err, unix.EINTR) {
				return
			}
		}
	}()
	_ = p.Signal(syscall.SIGTERM)
	kill := time.After(patience)
	for {
		select {
		case <-ended:
			return nil
		case <-kill:
			_ = p.Kill()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
