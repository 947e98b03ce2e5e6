// Command shoal-gateway is the proxy of Gateways and Ingresses. The agent starts it as a
// user of its own, without capabilities, and gives it the sockets that it answers on and
// all that it is to do (package gatewaycontrol). It goes on while the agent is away.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/agent/gatewaycontrol"
	"github.com/shoal-project/shoal/agent/gatewayproxy"
)

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("part", "gateway")
	if err := run(log); err != nil {
		fmt.Fprintln(os.Stderr, "shoal-gateway:", err)
		os.Exit(1)
	}
}

// process is the proxy with the sockets that it was given.
type process struct {
	proxy   *gatewayproxy.Proxy
	log     *slog.Logger
	program string

	mu      sync.Mutex
	sockets map[string]*os.File
	end     func()
}

func run(log *slog.Logger) error {
	if err := confine(); err != nil {
		return err
	}
	debug.SetGCPercent(50) // mostly buffers of requests that are over
	f := os.NewFile(gatewaycontrol.SocketFD, "control")
	l, err := net.FileListener(f)
	if err != nil {
		return fmt.Errorf("it is started by shoal-agent: %w", err)
	}
	_ = f.Close()
	ctx, end := context.WithCancel(context.Background())
	defer end()
	p := &process{
		proxy:   gatewayproxy.New(log),
		log:     log,
		program: gatewaycontrol.Program("/proc/self/exe"),
		sockets: map[string]*os.File{},
		end:     end,
	}
	context.AfterFunc(ctx, func() { _ = l.Close() })
	for {
		c, err := l.Accept()
		if err != nil {
			break
		}
		go p.obey(gatewaycontrol.NewConn(c.(*net.UnixConn), gatewaycontrol.MaxFrame))
	}
	last, cancel := context.WithTimeout(context.Background(), gatewayproxy.DrainTime)
	defer cancel()
	p.proxy.Close(last)
	return nil
}

// confine has the process never get more than it has. Root is refused: what comes from
// clients shall not be read by it.
func confine() error {
	if os.Getuid() == 0 || os.Geteuid() == 0 || os.Getgid() == 0 {
		return errors.New("it does not run as root")
	}
	// A child of this process, if ever there were one, and a program that replaced it,
	// could gain nothing; and no process of the same user reads its keys.
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no new privileges: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("not dumpable: %w", err)
	}
	return nil
}

// obey does what an agent says until it goes.
func (p *process) obey(c *gatewaycontrol.Conn) {
	defer c.Close()
	if err := c.ByRoot(); err != nil {
		p.log.Warn("refused", "err", err)
		return
	}
	if err := p.hello(c); err != nil {
		p.log.Warn("the agent does not hear what sockets there are", "err", err)
		return
	}
	for {
		var o gatewaycontrol.Order
		files, err := c.Receive(&o)
		if err != nil {
			if !errors.Is(err, io.EOF) {
				p.log.Warn("the agent is not understood", "err", err)
			}
			return
		}
		done := p.do(&o, files)
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		if err := c.Send(done); err != nil {
			return
		}
		_ = c.SetDeadline(time.Time{})
		if o.End {
			p.end()
			return
		}
	}
}

func (p *process) hello(c *gatewaycontrol.Conn) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var names []string
	for name := range p.sockets {
		names = append(names, name)
	}
	slices.Sort(names)
	for {
		part := names[:min(len(names), gatewaycontrol.MaxSockets)]
		names = names[len(part):]
		var files []*os.File
		for _, name := range part {
			files = append(files, p.sockets[name])
		}
		h := gatewaycontrol.Hello{Program: p.program, Sockets: part, More: len(names) > 0}
		if err := c.Send(h, files...); err != nil || !h.More {
			return err
		}
	}
}

func (p *process) do(o *gatewaycontrol.Order, files []*os.File) (done gatewaycontrol.Done) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	if o.Backends != nil {
		p.proxy.SetBackends(o.Backends)
	}
	if o.Config != nil {
		p.proxy.LogAccess(nil)
		if o.AccessLog {
			p.proxy.LogAccess(slog.New(slog.NewJSONHandler(os.Stdout, nil)))
		}
		errs = append(errs, p.proxy.Set(o.Config))
	}
	for i, f := range files {
		if i >= len(o.Sockets) {
			_ = f.Close()
			continue
		}
		if err := p.take(o.Sockets[i], f); err != nil {
			errs = append(errs, fmt.Errorf("socket %s: %w", o.Sockets[i], err))
		}
	}
	if o.Config != nil {
		for name, f := range p.sockets {
			if !slices.Contains(o.Keep, name) {
				p.proxy.Remove(name)
				_ = f.Close()
				delete(p.sockets, name)
			}
		}
	}
	if o.Metrics {
		var b strings.Builder
		errs = append(errs, p.proxy.Metrics().Write(&b))
		done.Metrics = b.String()
	}
	if err := errors.Join(errs...); err != nil {
		done.Fault = err.Error()
	}
	return done
}

// take answers on a socket.
func (p *process) take(name string, f *os.File) error {
	if old := p.sockets[name]; old != nil {
		p.proxy.Remove(name)
		_ = old.Close()
		delete(p.sockets, name)
	}
	if strings.HasPrefix(name, "udp/") {
		c, err := net.FilePacketConn(f)
		if err != nil {
			return errors.Join(err, f.Close())
		}
		p.proxy.AddPacket(name, c)
	} else {
		l, err := net.FileListener(f)
		if err != nil {
			return errors.Join(err, f.Close())
		}
		p.proxy.Add(name, l)
	}
	p.sockets[name] = f
	return nil
}
