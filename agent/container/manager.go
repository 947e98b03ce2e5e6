package container

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
	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/checkpoint"
	"github.com/shoal-project/shoal/agent/oci"
	"github.com/shoal-project/shoal/agent/selinux"
)

// Config says where containers live and by what they are run.
type Config struct {
	DataDir  string // records and writable layers; survives a reboot
	RunDir   string // bundles, sockets, exit files; does not need to
	Conmon   string // program
	Runtimes map[string]oci.Runtime
	Cgroups  *cgroup.Root
	Host     oci.Host
	OnChange func(c *Container) // after a start, an exit, a creation; must not block
	Quotas   Quotas             // nil: nothing limits what containers write but what is measured
	Seal     *checkpoint.Keys   // of the records; nil: in the clear
	Labels   selinux.Labeler    // nil: the node has no SELinux
	// MayRun is asked when a container's process exists and is about to run its program;
	// nil: all may.
	MayRun func(c *Container) error
	Log    *slog.Logger

	// hungWait is how long a monitor may live on after its container; 0: as on a node.
	hungWait time.Duration
	// startWait is how long making a container may take; 0: as on a node.
	startWait time.Duration
}

// Manager owns the node's containers.
type Manager struct {
	cfg     Config
	records *checkpoint.Store[record]
	watch   *watcher // of monitors
	firsts  *watcher // of the containers' first processes
	// unwatched is for what is said once of monitors that the kernel does not watch.
	unwatched sync.Once
	filters   oci.Filters

	// dumps holds a token while a checkpoint is made: each takes of the same disk.
	dumps chan struct{}

	mu  sync.RWMutex
	all map[string]*slot
}

// slot is a container with what only a running agent knows about it.
type slot struct {
	c      *Container
	op     sync.Mutex    // one start, stop or removal at a time
	dump   sync.Mutex    // one checkpoint of it at a time
	exited chan struct{} // closed when the container has exited
	usage  diskUsage
	// profile is that of its system calls if its start is to tell how the runtime
	// translates it; op guards it.
	profile oci.Profile
}

// Open reads the records and adopts what runs: process IDs, exit codes and
// times are those of the containers, whatever happened to the agent.
func Open(cfg Config) (*Manager, error) {
	m := &Manager{cfg: cfg, all: map[string]*slot{}, dumps: make(chan struct{}, 1)}
	// The root of a user namespace goes through RunDir to its container.
	for d, mode := range map[string]fs.FileMode{cfg.DataDir: 0o700, cfg.RunDir: 0o711} {
		if err := errors.Join(os.MkdirAll(d, mode), os.Chmod(d, mode)); err != nil {
			return nil, fmt.Errorf("open containers: %w", err)
		}
	}
	if err := oci.PrivateDir(m.exitDir(), oci.IDs{}); err != nil {
		return nil, fmt.Errorf("open containers: %w", err)
	}
	var err error
	if m.records, err = checkpoint.OpenVolatile[record](cfg.DataDir, cfg.Seal, damagedRecord, cfg.Log); err != nil {
		return nil, fmt.Errorf("open containers: %w", err)
	}
	kept, err := m.records.All()
	if err != nil {
		return nil, fmt.Errorf("open containers: %w", err)
	}
	if m.watch, err = newWatcher(m.recordEnd); err != nil {
		return nil, fmt.Errorf("open containers: %w", err)
	}
	if m.firsts, err = newWatcher(m.expectEnd); err != nil {
		m.watch.Close()
		return nil, fmt.Errorf("open containers: %w", err)
	}
	for id, r := range kept {
		if err := m.keepPrivate(r.Container); err != nil {
			return nil, fmt.Errorf("open containers: %w", err)
		}
		s := &slot{c: r.Container, exited: make(chan struct{})}
		m.all[id] = s
		m.retake(r.Container)
		if r.State == Exited {
			close(s.exited)
		}
	}
	for _, r := range kept {
		m.adopt(r.Container)
	}
	return m, nil
}

// keepPrivate closes the directories of a container that an agent of before
// left open to the node's users.
func (m *Manager) keepPrivate(c *Container) error {
	users := c.Config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
	ids := oci.IDs{UIDs: oci.IDMappings(users.GetUids()), GIDs: oci.IDMappings(users.GetGids())}
	return errors.Join(oci.KeepPrivate(m.bundle(c.ID), ids), oci.KeepPrivate(m.layer(c.ID), oci.IDs{}))
}

// adopt takes up the supervision of a container that the last agent left.
func (m *Manager) adopt(c *Container) {
	lives, err := sameProcess(c.Monitor, c.MonitorAt)
	switch {
	case c.State == Running && (lives || err != nil):
		m.releaseHalfStarted(c)
		if m.follow(c) {
			m.watchFirst(c)
			return
		}
		fallthrough
	case c.State == Running:
		m.recordEnd(c.ID)
	case c.State == Created:
		// Killed between conmon's start and the record of it: the container
		// has not been let run, so it can be made again from the beginning. A runtime
		// that is still making it would do so after this, or hangs.
		m.endMonitor(c.ID)
		m.discardHalfStarted(c)
	}
}

// releaseHalfStarted lets a container go on whose start was recorded but not
// finished when the last agent was killed.
func (m *Manager) releaseHalfStarted(c *Container) {
	rt, err := m.runtime(c.Handler)
	if err != nil {
		return
	}
	if err := m.mayRun(c); err != nil {
		m.endCreated(rt, c)
		return
	}
	switch {
	case rt.Direct():
		err = rt.Release(c.ID)
	case m.waits(rt, c.ID):
		err = m.runtimeStart(rt, c.ID)
	}
	if err != nil && !errors.Is(err, oci.ErrNotCreated) {
		m.cfg.Log.Warn("cannot let a created container run", "container", c.ID, "err", err)
	}
}

func (m *Manager) mayRun(c *Container) error {
	if m.cfg.MayRun == nil {
		return nil
	}
	return m.cfg.MayRun(c)
}

// endCreated ends a container that has not run its program, and leaves one alone that
// has: its pod is stopped by others when it must be.
func (m *Manager) endCreated(rt oci.Runtime, c *Container) {
	if !m.waits(rt, c.ID) {
		return
	}
	if err := m.cfg.Cgroups.Kill(c.Cgroup); err != nil {
		m.cfg.Log.Warn("cannot end a container that may not run", "container", c.ID, "err", err)
	}
}

// Close stops watching. Containers go on.
func (m *Manager) Close() error { return errors.Join(m.watch.Close(), m.firsts.Close()) }

func (m *Manager) exitDir() string             { return filepath.Join(m.cfg.RunDir, "exits") }
func (m *Manager) bundle(id string) string     { return filepath.Join(m.cfg.RunDir, id) }
func (m *Manager) rootfs(id string) string     { return filepath.Join(m.bundle(id), "rootfs") }
func (m *Manager) pidPin(id string) string     { return filepath.Join(m.bundle(id), "pid-namespace") }
func (m *Manager) layer(id string) string      { return filepath.Join(m.cfg.DataDir, id) }
func (m *Manager) ownVolumes(id string) string { return filepath.Join(m.layer(id), "volumes") }
func (m *Manager) upper(id string) string      { return filepath.Join(m.layer(id), "upper") }
func (m *Manager) runtimeLog(id string) string { return filepath.Join(m.bundle(id), "runtime.log") }

// runtime is the OCI runtime of a container's handler.
func (m *Manager) runtime(handler string) (oci.Runtime, error) {
	r, ok := m.cfg.Runtimes[handler]
	if !ok {
		return r, fmt.Errorf("no runtime for %q is configured: %w", handler, errdefs.ErrInvalidArgument)
	}
	return r, nil
}

// pinned names a container's runtime so that a later change of the default does
// not reach containers that another program made.
func (m *Manager) pinned(handler string, rt oci.Runtime) string {
	if name := filepath.Base(rt.Path); handler == "" && m.cfg.Runtimes[name].Path == rt.Path {
		return name
	}
	return handler
}

// find returns the slot of a container by ID or by a unique beginning of it.
func (m *Manager) find(id string) (*slot, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if s, ok := m.all[id]; ok {
		return s, nil
	}
	var found *slot
	for full, s := range m.all {
		if id != "" && strings.HasPrefix(full, id) {
			if found != nil {
				return nil, fmt.Errorf("container ID %q is not unique: %w", id, errdefs.ErrInvalidArgument)
			}
			found = s
		}
	}
	if found == nil {
		return nil, fmt.Errorf("an error occurred when try to find container %q: %w", id, errdefs.ErrNotFound)
	}
	return found, nil
}

// Get returns the container's present state.
func (m *Manager) Get(id string) (*Container, error) {
	s, err := m.find(id)
	if err != nil {
		return nil, err
	}
	return m.state(s), nil
}

func (m *Manager) state(s *slot) *Container {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return s.c
}

// List returns all containers, newest first.
func (m *Manager) List() []*Container { return m.Select(func(*Container) bool { return true }) }

// Select returns the containers that keep is true for, newest first. keep must be quick.
func (m *Manager) Select(keep func(*Container) bool) (out []*Container) {
	m.mu.RLock()
	for _, s := range m.all {
		if keep(s.c) {
			out = append(out, s.c)
		}
	}
	m.mu.RUnlock()
	slices.SortFunc(out, func(a, b *Container) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return out
}

// InUse tells whether a container uses these layers.
func (m *Manager) InUse(chainID string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, s := range m.all {
		if s.c.ChainID == chainID {
			return true
		}
	}
	return false
}

// put records and publishes a new state.
func (m *Manager) put(s *slot, c Container) error {
	if err := m.records.Put(c.ID, &record{&c}); err != nil {
		return err
	}
	m.mu.Lock()
	s.c = &c
	m.mu.Unlock()
	return nil
}

// Wait blocks until the container has exited or ctx ends.
func (m *Manager) Wait(ctx context.Context, id string) (*Container, error) {
	s, err := m.find(id)
	if err != nil {
		return nil, err
	}
	select {
	case <-s.exited:
		return m.state(s), nil
	case <-ctx.Done():
		return m.state(s), ctx.Err()
	}
}

// waitFor is Wait with a duration; it tells whether the container exited.
func (m *Manager) waitFor(ctx context.Context, s *slot, d time.Duration) (bool, error) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-s.exited:
		return true, nil
	case <-t.C:
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}
