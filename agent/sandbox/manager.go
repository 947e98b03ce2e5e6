package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/shoal-project/shoal/agent/beneath"
	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/checkpoint"
	"github.com/shoal-project/shoal/agent/netns"
	"github.com/shoal-project/shoal/agent/oci"
	"golang.org/x/sys/unix"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Config says where sandboxes live and what they are made of.
type Config struct {
	RecordDir  string // survives a reboot
	RunDir     string // does not need to
	CgroupRoot string // parent of sandboxes that name none
	Cgroups    *cgroup.Root
	Network    Network
	Pause      string           // the program shoal-pause
	Seal       *checkpoint.Keys // of the records; nil: in the clear
	Log        *slog.Logger
}

// Manager owns the node's sandboxes.
type Manager struct {
	cfg     Config
	records *checkpoint.Store[record]
	pause   *pauseProgram

	mu  sync.RWMutex
	all map[string]*Sandbox
}

// Open reads the records. A sandbox whose namespaces are gone (a reboot) is
// NotReady.
func Open(cfg Config) (*Manager, error) {
	// The root of a user namespace goes through it to its sandbox.
	if err := errors.Join(os.MkdirAll(cfg.RunDir, 0o711), os.Chmod(cfg.RunDir, 0o711)); err != nil {
		return nil, fmt.Errorf("open sandboxes: %w", err)
	}
	records, err := checkpoint.OpenVolatile[record](cfg.RecordDir, cfg.Seal, damagedRecord, cfg.Log)
	if err != nil {
		return nil, fmt.Errorf("open sandboxes: %w", err)
	}
	kept, err := records.All()
	if err != nil {
		return nil, fmt.Errorf("open sandboxes: %w", err)
	}
	m := &Manager{cfg: cfg, records: records, pause: &pauseProgram{path: cfg.Pause}, all: map[string]*Sandbox{}}
	for id, r := range kept {
		m.all[id] = r.Sandbox
		if err := oci.KeepPrivate(r.Dir, mappedIDs(r.Sandbox)); err != nil {
			return nil, fmt.Errorf("open sandboxes: %w", err)
		}
		if r.Ready && !alive(r.Sandbox) {
			r.Ready = false
			m.note(*r.Sandbox)
		}
	}
	return m, nil
}

// alive tells whether all that a ready sandbox consists of is still there.
func alive(s *Sandbox) bool {
	if lost(s) != "" {
		return false
	}
	if s.options().GetIpc() != criv1.NamespaceMode_NODE {
		return true
	}
	_, err := os.Stat(s.ResolvConf()) // else nothing tells that the machine was started anew
	return err == nil
}

// lost names what a ready sandbox lacks that cannot be made again beside containers which
// run in it, "" for nothing.
func lost(s *Sandbox) string {
	switch {
	case !s.Pins.Alive():
		return "its namespaces"
	case s.PIDPin != "" && !netns.Exists(s.PIDPin):
		return "its PID namespace"
	case s.PIDPin != "" && !holds(s): // without its first process the namespace takes no other
		return "the first process of its PID namespace"
	case s.options().GetIpc() != criv1.NamespaceMode_NODE && !isMount(s.Shm()):
		return "its /dev/shm"
	}
	return ""
}

// Check sees to it that a container can be made in a sandbox: files that somebody removed
// are written again. A sandbox that has lost more is not ready any more, so that its owner
// makes another.
func (m *Manager) Check(s *Sandbox) error {
	if what := lost(s); what != "" {
		c := *s
		c.Ready = false
		m.note(c)
		return fmt.Errorf("sandbox %q has lost %s, which somebody ended, unmounted or removed on the node: "+
			"another has to take its place", s.ID, what)
	}
	for _, file := range []string{s.ResolvConf(), s.HostnameFile(), s.HostsFile()} {
		if absent(file) {
			m.cfg.Log.Warn("a sandbox's file is gone: it is written again", "sandbox", s.ID, "file", file)
			return writeFiles(s)
		}
	}
	return nil
}

func absent(file string) bool {
	_, err := os.Lstat(file)
	return errors.Is(err, fs.ErrNotExist)
}

func isMount(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.TMPFS_MAGIC && !sameDevice(dir, filepath.Dir(dir))
}

func sameDevice(a, b string) bool {
	var x, y unix.Stat_t
	return unix.Stat(a, &x) == nil && unix.Stat(b, &y) == nil && x.Dev == y.Dev
}

// Get finds a sandbox by its ID; a unique beginning of it is enough.
func (m *Manager) Get(id string) (*Sandbox, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if s, ok := m.all[id]; ok {
		return s, nil
	}
	var found *Sandbox
	for full, s := range m.all {
		if id != "" && strings.HasPrefix(full, id) {
			if found != nil {
				return nil, fmt.Errorf("sandbox ID %q is not unique: %w", id, errdefs.ErrInvalidArgument)
			}
			found = s
		}
	}
	if found == nil {
		return nil, fmt.Errorf("an error occurred when try to find sandbox %q: %w", id, errdefs.ErrNotFound)
	}
	return found, nil
}

// List returns all sandboxes, newest first.
func (m *Manager) List() []*Sandbox { return m.Select(func(*Sandbox) bool { return true }) }

// Select returns the sandboxes that keep is true for, newest first. keep must be quick.
func (m *Manager) Select(keep func(*Sandbox) bool) (out []*Sandbox) {
	m.mu.RLock()
	for _, s := range m.all {
		if keep(s) {
			out = append(out, s)
		}
	}
	m.mu.RUnlock()
	slices.SortFunc(out, func(a, b *Sandbox) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return out
}

// put records a new state of s.
func (m *Manager) put(s Sandbox) (*Sandbox, error) {
	if err := m.records.Put(s.ID, &record{&s}); err != nil {
		return nil, err
	}
	m.mu.Lock()
	m.all[s.ID] = &s
	m.mu.Unlock()
	return &s, nil
}

// note is put for what needs no record to be true: that a sandbox has ended
// shows after a restart too. A full disk must not keep pods from going, for
// they may be what fills it.
func (m *Manager) note(s Sandbox) {
	if _, err := m.put(s); err != nil {
		m.cfg.Log.Warn("a sandbox's end is not recorded", "sandbox", s.ID, "err", err)
		m.mu.Lock()
		m.all[s.ID] = &s
		m.mu.Unlock()
	}
}

// Run makes a sandbox. What it did is undone on an error.
func (m *Manager) Run(ctx context.Context, config *criv1.PodSandboxConfig, handler string) (*Sandbox, error) {
	id := NewID()
	dir := filepath.Join(m.cfg.RunDir, id)
	s := Sandbox{ID: id, Config: config, Handler: handler, CreatedAt: time.Now(), Dir: dir,
		Cgroup: config.GetLinux().GetCgroupParent()}
	driver := m.cfg.Cgroups.Driver()
	if s.Cgroup == "" {
		s.Cgroup, s.OwnCgroup = driver.Child(m.cfg.CgroupRoot, "pod-"+id), true
	}
	var err error
	if s.Cgroup, err = driver.Expand(s.Cgroup); err != nil {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	userns, err := UserNamespace(config)
	if err != nil {
		return nil, err
	}
	s.Pins = m.pins(&s)
	if userns != nil {
		s.Pins.User = filepath.Join(dir, "ns", "user")
	}
	if Options(config).GetPid() == criv1.NamespaceMode_POD {
		s.PIDPin = filepath.Join(dir, "ns", "pid")
	}
	if s.Networked = !s.HostNetwork(); s.Networked {
		s.Network = m.cfg.Network.Name()
	}
	// Recorded before it matters: a crash from here on leaves nothing unknown.
	if _, err := m.put(s); err != nil {
		return nil, err
	}
	if err := m.build(ctx, &s); err != nil {
		m.undo(ctx, &s)
		return nil, err
	}
	s.Ready = true
	made, err := m.put(s)
	if err != nil {
		m.undo(ctx, &s)
	}
	return made, err
}

// undo removes a sandbox that could not be made, even if the caller has gone. What
// cannot be removed stays known.
func (m *Manager) undo(ctx context.Context, s *Sandbox) {
	s.Ready = false
	err := m.release(context.WithoutCancel(ctx), s)
	if err == nil {
		err = m.drop(s.ID)
	}
	if err != nil {
		m.cfg.Log.Warn("a sandbox that could not be started is not fully removed", "sandbox", s.ID, "err", err)
		m.note(*s)
	}
}

func (m *Manager) pins(s *Sandbox) netns.Pins {
	var p netns.Pins
	at := func(kind string) string { return filepath.Join(s.Dir, "ns", kind) }
	if !s.HostNetwork() {
		p.Net, p.UTS = at("net"), at("uts")
	}
	if s.options().GetIpc() != criv1.NamespaceMode_NODE {
		p.IPC = at("ipc")
	}
	return p
}

func (m *Manager) build(ctx context.Context, s *Sandbox) error {
	if s.OwnCgroup {
		if err := m.cfg.Cgroups.Ensure(s.Cgroup, cgroup.Resources{}); err != nil {
			return err
		}
	}
	m.cfg.Cgroups.ExpectMove() // by the first container's start; no group can be made meanwhile
	if err := makeDir(s); err != nil {
		return err
	}
	if err := m.makeNamespaces(s); err != nil {
		return err
	}
	if s.HostNetwork() {
		return nil
	}
	ips, err := m.cfg.Network.Setup(ctx, s.networked())
	if err != nil {
		return fmt.Errorf("failed to setup network for sandbox %q: %w", s.ID, err)
	}
	s.IPs = ips
	return nil
}

// Outdate says that a sandbox must be made anew. Nothing of it goes before it is
// stopped: what runs in it is its owner's to end.
func (m *Manager) Outdate(id string) error {
	s, err := m.Get(id)
	if err != nil {
		return err
	}
	c := *s
	c.Ready = false
	_, err = m.put(c)
	return err
}

// Stop ends a sandbox: its network and namespaces go, its record stays. The
// caller has stopped its containers before. It may be called again.
func (m *Manager) Stop(ctx context.Context, id string) error {
	s, err := m.Get(id)
	if err != nil {
		return err
	}
	c := *s
	err = m.release(ctx, &c)
	c.Ready = false
	m.note(c)
	return err
}

// release undoes build, in reverse, all of it even after an error.
func (m *Manager) release(ctx context.Context, s *Sandbox) error {
	var errs []error
	if s.Networked {
		if err := m.cfg.Network.Teardown(ctx, s.networked()); err != nil {
			errs = append(errs, fmt.Errorf("failed to destroy network for sandbox %q: %w", s.ID, err))
		} else {
			s.Networked = false
		}
	}
	errs = append(errs, m.releasePID(s))
	if !s.Networked { // the network may need its namespace once more
		errs = append(errs, s.Pins.Remove())
	}
	errs = append(errs, unmountShm(s))
	if s.OwnCgroup {
		_ = m.cfg.Cgroups.Kill(s.Cgroup)
		errs = append(errs, m.cfg.Cgroups.Delete(s.Cgroup))
	}
	return errors.Join(errs...)
}

// Remove forgets a stopped sandbox and removes its files.
func (m *Manager) Remove(ctx context.Context, id string) error {
	s, err := m.Get(id)
	if err != nil {
		return err
	}
	if err := m.Stop(ctx, s.ID); err != nil {
		return err
	}
	return m.drop(s.ID)
}

func (m *Manager) drop(id string) error {
	if err := beneath.RemoveAll(filepath.Join(m.cfg.RunDir, id)); err != nil {
		return fmt.Errorf("remove sandbox files: %w", err)
	}
	if err := m.records.Delete(id); err != nil {
		return fmt.Errorf("remove sandbox record: %w", err)
	}
	m.mu.Lock()
	delete(m.all, id)
	m.mu.Unlock()
	return nil
}
