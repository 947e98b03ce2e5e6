package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/shoal-project/shoal/tests/bench/measure"
	"github.com/shoal-project/shoal/tests/harness"
)

// cluster is a running system of either kind.
type cluster struct {
	system     string
	dir        string
	netns      string // of the first machine
	address    string // of the first machine
	kubeconfig string // the administrator's
	podGroup   string // cgroup that the first node keeps its pods' in
	groups     []measure.Group
	daemons
	config *rest.Config // without rates; JSON
	client kubernetes.Interface
	// took is the time from the start of the first process until the cluster
	// was ready.
	took time.Duration
}

// daemons is what differs between the two.
type daemons interface {
	// join adds a node that has the name "node2".
	join(ctx context.Context) error
	// cut takes the second node off the network.
	cut() error
	stop() error
	logs() string
	// aside starts a process beside the system, on the first machine.
	aside(name string, command ...string) error
	// onNode is aside among the mounts of a node, which counts from 0.
	onNode(node int, name string, command ...string) error
	// kubeletDir is the directory of a node that storage drivers know.
	kubeletDir(node int) string
	// ended tells which process has ended, if one has.
	ended() error
}

const (
	nodeOne, nodeTwo = "node1", "node2"
	serviceCIDR      = "10.96.0.0/16"
	// planeCIDR has a network for each of some thousand nodes.
	planeCIDR = "10.128.0.0/9"
)

// start starts a cluster. After an error it has been stopped, or is returned
// to be stopped.
func (b *bench) start(ctx context.Context, s stage) (*cluster, error) {
	make := startPeer
	switch {
	case b.system == shoalName && s == plane:
		make = startShoalPlane
	case b.system == shoalName:
		make = startShoal
	}
	c, err := make(ctx, b.options, s)
	if err != nil {
		return c, err
	}
	c.system = b.system
	if c.config, err = harness.RESTConfig(c.netns, c.kubeconfig); err != nil {
		return c, err
	}
	c.config.Timeout = 2 * time.Minute
	if c.client, err = kubernetes.NewForConfig(encoded(c.config, protobuf)); err != nil {
		return c, err
	}
	if s == twoNodes {
		err = c.join(ctx)
	}
	return c, err
}

const (
	protobuf = "application/vnd.kubernetes.protobuf"
	asJSON   = "application/json"
)

func encoded(config *rest.Config, contentType string) *rest.Config {
	config = rest.CopyConfig(config)
	config.ContentType, config.AcceptContentTypes = contentType, contentType
	return config
}

// used is the CPU time of the whole system so far, pods with it.
func (c *cluster) used() (time.Duration, error) {
	var sum time.Duration
	for _, g := range c.groups {
		d, err := g.Used()
		if err != nil {
			return 0, err
		}
		sum += d
	}
	return sum, nil
}

// host is a machine made for daemons that are started one by one: a directory,
// a network and a cgroup.
type host struct {
	name  string
	dir   string
	lan   *harness.LAN
	group measure.Group
	netns []string // one a machine
	addrs []string

	mu    sync.Mutex
	procs []*process
}

// process is a running daemon.
type process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	// aside is for a process that does not belong to the system.
	aside bool
}

// end lets a process end by itself, and kills it when that takes long.
func (p *process) end() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(10 * time.Second):
		return p.cmd.Process.Kill()
	}
}

func newHost() (*host, error) {
	dir, err := os.MkdirTemp("", "peer-")
	if err != nil {
		return nil, err
	}
	h := &host{name: filepath.Base(dir), dir: dir}
	if h.lan, err = harness.NewLAN("pb" + h.name[len(h.name)-8:]); err != nil {
		return h, err
	}
	if err := h.machine(); err != nil {
		return h, err
	}
	h.group, err = measure.NewGroup(h.name + "-daemons")
	return h, err
}

// machine adds a machine.
func (h *host) machine() error {
	netns, addr, err := h.lan.Host()
	h.netns, h.addrs = append(h.netns, netns), append(h.addrs, addr)
	return err
}

func (h *host) path(elem ...string) string {
	return filepath.Join(append([]string{h.dir}, elem...)...)
}

// start starts a daemon on a machine (from 0), its output in a log file.
func (h *host) start(machine int, name string, command ...string) (*process, error) {
	return h.run(machine, name, append(h.group.Prefix(), command...))
}

// aside starts a process that does not belong to the system.
func (h *host) aside(name string, command ...string) error { return h.beside(0, name, command) }

// beside is aside on a machine.
func (h *host) beside(machine int, name string, command []string) error {
	p, err := h.run(machine, name, command)
	if err == nil {
		p.aside = true
	}
	return err
}

func (h *host) run(machine int, name string, command []string) (*process, error) {
	log, err := os.OpenFile(h.path(name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &process{name: name, cmd: harness.Command(h.netns[machine], command[0], command[1:]...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the terminal's Ctrl-C is ours
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait() // how a daemon ended is in its log
		close(p.done)
	}()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.procs = append(h.procs, p)
	return p, nil
}

// ended tells which daemon has ended, if one has.
func (h *host) ended() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.procs {
		select {
		case <-p.done:
			return fmt.Errorf("%s ended: %s", p.name, p.cmd.ProcessState)
		default:
		}
	}
	return nil
}

// until calls ok every few milliseconds until it returns nil.
func (h *host) until(ctx context.Context, what string, limit time.Duration, ok func() error) error {
	for deadline := time.Now().Add(limit); ; {
		err := ok()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: not within %s: %w", what, limit, err)
		}
		if ended := h.ended(); ended != nil {
			return fmt.Errorf("%s: %w", what, ended)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// logs are the ends of the daemons' logs.
func (h *host) logs() string {
	var b strings.Builder
	files, _ := filepath.Glob(h.path("*.log"))
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err == nil {
			fmt.Fprintf(&b, "--- %s\n%s\n", filepath.Base(f), data[max(0, len(data)-3000):])
		}
	}
	return b.String()
}

// stop ends all processes of the host and removes what it made. Mounts are in
// namespaces that end with their processes.
func (h *host) stop() error {
	var errs []error
	for _, p := range h.procs {
		if p.aside {
			errs = append(errs, p.end())
		}
	}
	for _, dir := range []string{h.name + "-daemons", h.name} {
		if g := measure.Group(filepath.Join(measure.Accountant(), dir)); g.Exists() {
			errs = append(errs, g.Kill())
		}
	}
	for _, p := range h.procs {
		<-p.done
	}
	if h.lan != nil {
		errs = append(errs, h.lan.Close())
	}
	if os.Getenv("KEEP") != "" {
		fmt.Fprintln(os.Stderr, "peerbench: logs are kept in", h.dir)
	} else {
		errs = append(errs, os.RemoveAll(h.dir))
	}
	errs = append(errs, measure.RemoveGroups(h.name), measure.RemoveGroups(h.name+"-daemons"))
	return errors.Join(errs...)
}
