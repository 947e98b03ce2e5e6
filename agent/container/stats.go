package container

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/shoal-project/shoal/agent/beneath"
	"github.com/shoal-project/shoal/agent/cgroup"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// usageAge is how long a measured size of a writable layer is good enough:
// measuring walks the whole layer.
const usageAge = 15 * time.Second

type diskUsage struct {
	mu            sync.Mutex
	at            time.Time
	bytes, inodes int64
}

// Usage is what a container's writable layer takes.
type Usage struct {
	At            time.Time
	Dir           string
	Bytes, Inodes int64 // Inodes are quota.Uncounted where nobody counts them
}

// Stats reads a container's use of CPU and memory.
func (m *Manager) Stats(id string) (cgroup.Stats, error) {
	c, err := m.Get(id)
	if err != nil {
		return cgroup.Stats{}, err
	}
	return m.cfg.Cgroups.Stat(c.Cgroup)
}

// Usage tells what a container's writable layer takes: what the file system counts for
// it, else what it was measured to take in the last 15 seconds.
func (m *Manager) Usage(ctx context.Context, id string) (Usage, error) {
	s, err := m.find(id)
	if err != nil {
		return Usage{}, err
	}
	c := m.state(s)
	dir := m.upper(c.ID)
	has, ok, err := m.counted(c)
	if err != nil {
		return Usage{}, err
	}
	if ok {
		return Usage{At: time.Now(), Dir: dir, Bytes: has.Bytes, Inodes: has.Inodes}, nil
	}
	u := &s.usage
	u.mu.Lock()
	defer u.mu.Unlock()
	if time.Since(u.at) > usageAge {
		bytes, inodes, err := m.walk(ctx, c.ID)
		if err != nil {
			return Usage{}, err
		}
		u.at, u.bytes, u.inodes = time.Now(), bytes, inodes
	}
	return Usage{At: u.at, Dir: dir, Bytes: u.bytes, Inodes: u.inodes}, nil
}

// Files measures what a container wrote by its files alone, one by one: a file system
// counts what it keeps about them too.
func (m *Manager) Files(ctx context.Context, id string) (bytes int64, err error) {
	s, err := m.find(id)
	if err != nil {
		return 0, err
	}
	bytes, _, err = m.walk(ctx, m.state(s).ID)
	return bytes, err
}

func (m *Manager) walk(ctx context.Context, id string) (bytes, inodes int64, err error) {
	bytes, inodes, err = beneath.Usage(ctx, m.upper(id))
	if err == nil { // the image's own volumes, of a container whose root is read-only
		more, files, volErr := beneath.Usage(ctx, m.ownVolumes(id))
		if volErr != nil && !errors.Is(volErr, fs.ErrNotExist) {
			err = volErr
		}
		bytes, inodes = bytes+more, inodes+files
	}
	if err != nil {
		return 0, 0, fmt.Errorf("measure writable layer: %w", err)
	}
	return bytes, inodes, nil
}

// Update changes the limits of a container while it runs.
func (m *Manager) Update(id string, r *criv1.LinuxContainerResources) error {
	s, err := m.find(id)
	if err != nil {
		return err
	}
	s.op.Lock()
	defer s.op.Unlock()
	c := *m.state(s)
	if c.State == Exited {
		return fmt.Errorf("container %q is in %s state: %w", c.ID, criState(c.State), errdefs.ErrFailedPrecondition)
	}
	config := cloneConfig(c.Config)
	config.Linux.Resources = merge(config.Linux.GetResources(), r)
	if c.State == Running {
		if err := m.cfg.Cgroups.Set(c.Cgroup, limits(r)); err != nil {
			return fmt.Errorf("update container %q: %w", c.ID, err)
		}
	} else if err := m.respec(&c, r); err != nil {
		return err
	}
	c.Config = config
	return m.put(s, c)
}
