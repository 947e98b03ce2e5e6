package gateway

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/agent/gatewaycontrol"
	"github.com/shoal-project/shoal/agent/gatewayfeed"
)

// answerTime is how long the proxy may take to do what it is told.
const answerTime = 10 * time.Second

// connection is one to the proxy.
type connection struct {
	*gatewaycontrol.Conn
	program string
	died    chan struct{} // closed when it does not answer
	dead    bool
}

func socketPath(dir string) string { return filepath.Join(dir, "control.sock") }
func pidPath(dir string) string    { return filepath.Join(dir, "pid") }

// dial reaches a proxy that runs, and hears what it has.
func dial(dir string) (*gatewaycontrol.Conn, gatewaycontrol.Hello, []*os.File, error) {
	var all gatewaycontrol.Hello
	var files []*os.File
	c, err := net.DialTimeout("unix", socketPath(dir), answerTime)
	if err != nil {
		return nil, all, nil, err
	}
	conn := gatewaycontrol.NewConn(c.(*net.UnixConn), gatewaycontrol.MaxAnswer)
	_ = conn.SetDeadline(time.Now().Add(answerTime))
	for more := true; more; {
		var h gatewaycontrol.Hello
		got, err := conn.Receive(&h)
		files = append(files, got...)
		if err == nil && len(got) != len(h.Sockets) {
			err = errors.New("it has names without sockets")
		}
		if err == nil && len(files) > maxSockets {
			err = errors.New("it has more sockets than it was given")
		}
		if err != nil {
			for _, f := range files {
				_ = f.Close()
			}
			return nil, all, nil, errors.Join(err, conn.Close())
		}
		all.Program, more = h.Program, h.More
		all.Sockets = append(all.Sockets, h.Sockets...)
	}
	_ = conn.SetDeadline(time.Time{})
	return conn, all, files, nil
}

// maxSockets bounds what a proxy gives back.
const maxSockets = 4096

func watch(c *gatewaycontrol.Conn, program string) *connection {
	return &connection{Conn: c, program: program, died: make(chan struct{})}
}

func (c *connection) close() {
	c.fail()
	_ = c.Conn.Close()
}

func (c *connection) fail() {
	if !c.dead {
		c.dead = true
		close(c.died)
	}
}

// order has the proxy do something; the manager's lock is held.
func (c *connection) order(o gatewaycontrol.Order, files []*os.File) (done gatewaycontrol.Done, err error) {
	_ = c.SetDeadline(time.Now().Add(answerTime))
	if err = c.Send(o, files...); err == nil {
		var none []*os.File
		none, err = c.Receive(&done)
		for _, f := range none {
			_ = f.Close()
		}
	}
	_ = c.SetDeadline(time.Time{})
	return done, err
}

// start starts the proxy, and connects to it.
func (m *Manager) start() error {
	if err := os.MkdirAll(m.cfg.Dir, 0o700); err != nil {
		return err
	}
	path := socketPath(m.cfg.Dir)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	f, err := l.File()
	_ = l.Close()
	if err != nil {
		return err
	}
	defer f.Close()
	cmd := exec.Command(m.cfg.Program)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = "/", []string{}, os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{f} // gatewaycontrol.SocketFD
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Credential: &syscall.Credential{Uid: m.cfg.User, Gid: m.cfg.Group},
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%w: install shoal-gateway beside shoal-agent", err)
	}
	if err := remember(m.cfg.Dir, cmd.Process.Pid); err != nil {
		m.log.Warn("a cleanup will not find the gateway proxy", "err", err)
	}
	// The agent's own pages are the last to be taken; the proxy's are not.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", cmd.Process.Pid), []byte("0"), 0)
	c, hello, _, err := dial(m.cfg.Dir)
	if err != nil {
		_ = cmd.Process.Kill()
		go func() { _ = cmd.Wait() }()
		return fmt.Errorf("the proxy does not answer: %w", err)
	}
	w := watch(c, hello.Program)
	go func() {
		err := cmd.Wait()
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.proxy == w && err != nil {
			m.log.Warn("the gateway proxy ended", "err", err)
		}
		w.fail()
	}()
	m.mu.Lock()
	m.proxy = w
	m.mu.Unlock()
	m.sent, m.backends = nil, nil
	return nil
}

// replace starts the program that is installed now; the one before finishes what it began
// while its successor answers on the same sockets.
func (m *Manager) replace() error {
	m.mu.Lock()
	old := m.proxy
	m.proxy = nil
	m.mu.Unlock()
	if err := m.start(); err != nil {
		m.mu.Lock()
		m.proxy = old
		m.mu.Unlock()
		return err
	}
	m.log.Info("another gateway proxy is installed; it takes over")
	m.retire()
	m.old = old
	return nil
}

// retire ends the proxy of before once its successor does all: from then on nothing new goes where
// only the one before would send it.
func (m *Manager) retire() {
	if m.old == nil {
		return
	}
	if _, err := m.old.order(gatewaycontrol.Order{End: true}, nil); err != nil {
		m.log.Warn("the gateway proxy of before was told to end, and did not hear it", "err", err)
	}
	_ = m.old.Close()
	m.old = nil
}

// open makes the sockets that the configuration has and there are none of, and closes
// those that it does not have any more. It names the new ones.
func (m *Manager) open() (made []string) {
	wanted := map[string]bool{}
	for i := range m.config.Ports {
		p := &m.config.Ports[i]
		key, number := p.Key(), p.Number
		switch p.Ingress {
		case gatewayfeed.IngressHTTP:
			number = m.cfg.HTTPPort
		case gatewayfeed.IngressHTTPS:
			number = m.cfg.HTTPSPort
		}
		if number == 0 {
			continue
		}
		wanted[key] = true
		if m.sockets[key] != nil {
			continue
		}
		f, err := socket(number, p.UDP())
		if err != nil {
			if m.refused[key] != err.Error() {
				m.refused[key] = err.Error()
				m.log.Warn("a port of a Gateway is not answered", "port", key, "err", err)
			}
			continue
		}
		delete(m.refused, key)
		m.sockets[key] = f
		made = append(made, key)
	}
	for key, f := range m.sockets {
		if !wanted[key] {
			_ = f.Close()
			delete(m.sockets, key)
		}
	}
	maps.DeleteFunc(m.refused, func(key, _ string) bool { return !wanted[key] })
	return made
}

// socket listens on all addresses of the node.
func socket(port uint16, udp bool) (*os.File, error) {
	address := ":" + strconv.Itoa(int(port))
	if udp {
		c, err := net.ListenPacket("udp", address)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		return c.(*net.UDPConn).File()
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	return l.(*net.TCPListener).File()
}

// remember writes down which process the proxy is, and when it began: its number alone may
// be another's later.
func remember(dir string, pid int) error {
	began, err := beginning(pid)
	if err != nil {
		return err
	}
	return os.WriteFile(pidPath(dir), []byte(strconv.Itoa(pid)+" "+began), 0o600)
}

// beginning is when a process began, field 22 of proc_pid_stat(5).
func beginning(pid int) (string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if len(fields) < 20 {
		return "", fmt.Errorf("/proc/%d/stat is short", pid)
	}
	return fields[19], nil
}

// process opens the proxy that an agent started; -1: there is none any more.
func process(dir string) (fd int, err error) {
	data, err := os.ReadFile(pidPath(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return -1, nil
	}
	if err != nil {
		return -1, err
	}
	number, began, _ := strings.Cut(string(data), " ")
	pid, err := strconv.Atoi(number)
	if err != nil {
		return -1, fmt.Errorf("%s: %w", pidPath(dir), err)
	}
	fd, err = unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return -1, nil
	}
	if err != nil {
		return -1, os.NewSyscallError("pidfd_open", err)
	}
	if now, err := beginning(pid); err != nil || now != began {
		return -1, unix.Close(fd)
	}
	return fd, nil
}

// runs tells whether that proxy goes on, or may.
func runs(dir string) bool {
	fd, err := process(dir)
	if err != nil || fd < 0 {
		return err != nil
	}
	defer unix.Close(fd)
	ended, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0) // also one not waited for
	return err != nil || ended == 0
}

// End ends the proxy that an agent left, at once. It is no error that there is none.
func End(dir string) error {
	fd, err := process(dir)
	if err != nil || fd < 0 {
		return err
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return os.NewSyscallError("pidfd_send_signal", err)
	}
	_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(answerTime/time.Millisecond))
	return err
}
