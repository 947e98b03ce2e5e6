package container

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	metadata "github.com/checkpoint-restore/checkpointctl/lib"
	"github.com/containerd/errdefs"

	"github.com/shoal-project/shoal/agent/dump"
	"github.com/shoal-project/shoal/agent/oci"
)

// checkpointLimit is how long CRIU may take with one container. It is not ended with its
// caller: what it has in its hands would not go on, and ends with it after this time.
const checkpointLimit = 10 * time.Minute

// errOneCheckpoint is told of a second one at the same time.
var errOneCheckpoint = fmt.Errorf("another checkpoint of it is being made: %w", errdefs.ErrFailedPrecondition)

// Checkpoint has CRIU write down a running container, which goes on, and packs that into an
// archive; one after the other, on a node. Status is what the CRI says of the container, as JSON; room is asked whether
// there is some for so many bytes more, nil: nobody is. When ctx ends before it is done,
// nothing is left of it in the end.
func (m *Manager) Checkpoint(ctx context.Context, id, archive string, status []byte,
	room func(need uint64) error) error {
	s, err := m.find(id)
	if err != nil {
		return err
	}
	c := m.state(s)
	rt, err := m.canCheckpoint(ctx, c)
	if err != nil {
		return err
	}
	if !s.dump.TryLock() {
		return fmt.Errorf("container %q: %w", c.ID, errOneCheckpoint)
	}
	done := make(chan error, 1)
	go func() {
		defer s.dump.Unlock()
		select {
		case m.dumps <- struct{}{}:
			defer func() { <-m.dumps }()
		case <-ctx.Done():
			return
		}
		done <- m.checkpoint(ctx, c, rt, archive, status, room)
	}()
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("checkpoint container %q: %w", c.ID, err)
	}
	return nil
}

// canCheckpoint finds the runtime of a container that can be written down.
func (m *Manager) canCheckpoint(ctx context.Context, c *Container) (oci.Runtime, error) {
	if c.State != Running {
		return oci.Runtime{}, fmt.Errorf("container %q is in %s state: only running containers can be checkpointed: %w",
			c.ID, criState(c.State), errdefs.ErrFailedPrecondition)
	}
	rt, err := m.runtime(c.Handler)
	if err != nil {
		return rt, err
	}
	if err := dump.CheckCRIU(ctx, c.ID); err != nil {
		return rt, err
	}
	if !rt.Checkpoints(ctx) {
		return rt, fmt.Errorf("checkpoint/restore support not available: %s has no checkpoint by CRIU "+
			"(crun may be built without it, as Debian 12's is; runc has it)", filepath.Base(rt.Path))
	}
	return rt, nil
}

// checkpoint does it. The directory for it goes in any case.
func (m *Manager) checkpoint(ctx context.Context, c *Container, rt oci.Runtime, archive string, status []byte,
	room func(uint64) error) (err error) {
	if room == nil {
		room = func(uint64) error { return nil }
	}
	if err := room(m.checkpointSize(c)); err != nil {
		return err
	}
	w, err := dump.NewWork(archive)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Remove()) }()
	w.Room = func() error { return room(0) }
	at := time.Now()
	if err := m.dump(c, rt, w); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil { // nobody waits for the archive
		return err
	}
	image := cmp.Or(c.Config.GetImage().GetUserSpecifiedImage(), c.Config.GetImage().GetImage())
	users := c.Config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
	return w.Pack(ctx, dump.Container{
		Config: metadata.ContainerConfig{
			ID:              c.ID,
			Name:            c.Config.GetMetadata().GetName(),
			RootfsImage:     image,
			RootfsImageRef:  c.ImageRef,
			RootfsImageName: image,
			OCIRuntime:      filepath.Base(rt.Path),
			CreatedTime:     c.CreatedAt,
			CheckpointedAt:  at,
		},
		Status: metadata.ContainerdStatus{
			CreatedAt: c.CreatedAt.UnixNano(),
			StartedAt: c.StartedAt.UnixNano(),
			Pid:       uint32(c.PID),
		},
		CRI:      status,
		SpecFile: filepath.Join(m.bundle(c.ID), "config.json"),
		Upper:    m.upper(c.ID),
		IDs:      dump.IDs{UIDs: oci.IDMappings(users.GetUids()), GIDs: oci.IDMappings(users.GetGids())},
	}, archive)
}

// checkpointSize is about what a checkpoint takes while it is made: the memory once as
// CRIU's images and once in the archive. What the container wrote is not known before.
func (m *Manager) checkpointSize(c *Container) uint64 {
	use, err := m.cfg.Cgroups.Stat(c.Cgroup)
	if err != nil {
		return 0 // room is asked for again while the archive is written
	}
	return 2 * use.Memory
}

// dump has the OCI runtime call CRIU.
func (m *Manager) dump(c *Container, rt oci.Runtime, w *dump.Work) error {
	ctx, cancel := context.WithTimeout(context.Background(), checkpointLimit)
	defer cancel()
	args := append(rt.GlobalArgs(filepath.Join(w.Logs(), "runtime.log")),
		"checkpoint", "--image-path", w.Images(), "--work-path", w.Logs(), "--leave-running", c.ID)
	cmd := exec.CommandContext(ctx, rt.Path, args...)
	cmd.Env = []string{"PATH=" + dump.Path()}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = drain
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil { // what CRIU held does not go on by itself: its restart policy says what follows
		return errors.Join(fmt.Errorf("it took longer than %v and was ended, and the container with it", checkpointLimit),
			m.cfg.Cgroups.Kill(c.Cgroup))
	}
	why := w.Complaints()
	if why == "" {
		why = oci.LastError(filepath.Join(w.Logs(), "runtime.log"))
	}
	if why == "" {
		why = strings.TrimSpace(string(out))
	}
	return fmt.Errorf("%s checkpoint: %w: %s", filepath.Base(rt.Path), err, why)
}
