package runtime

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/host"
)

// checkpointTime is how long a checkpoint may take by default, and the least that may be
// asked for, as the kubelet's client has it (its runtimeRequestTimeout).
const checkpointTime = 2 * time.Minute

// CheckpointContainer writes a running container, which goes on, into an archive at the
// request's location (KEP-2008).
func (r *Runtime) CheckpointContainer(ctx context.Context, req *criv1.CheckpointContainerRequest) error {
	if !filepath.IsAbs(req.GetLocation()) {
		return toStatus(badRequest("checkpoint: %q is no absolute path of an archive", req.GetLocation()))
	}
	if req.GetTimeout() < 0 {
		return toStatus(badRequest("CheckpointContainer requires the timeout value to be > 0"))
	}
	ctx, cancel := context.WithTimeout(ctx, max(time.Duration(req.GetTimeout())*time.Second, checkpointTime))
	defer cancel()
	c, err := r.containers.Get(req.GetContainerId())
	if err != nil {
		return toStatus(err)
	}
	status, err := json.Marshal(r.containerStatus(c)) // as containerd: its restore reads it so
	if err != nil {
		return toStatus(err)
	}
	return toStatus(r.containers.Checkpoint(ctx, c.ID, req.GetLocation(), status, r.checkpointRoom(req.GetLocation())))
}

// checkpointRoom tells whether the archive's file system has so many bytes beside what is
// kept of it.
func (r *Runtime) checkpointRoom(archive string) func(need uint64) error {
	if r.cfg.KeepCheckpoints == nil {
		return nil
	}
	return func(need uint64) error {
		disk, err := host.Space(filepath.Dir(archive))
		if err != nil {
			return err
		}
		keep := r.cfg.KeepCheckpoints(disk.Bytes)
		if disk.Available >= keep+need {
			return nil
		}
		return fmt.Errorf("no room for it: %d MiB are left in %s, it takes %d MiB or more, and evictionHard keeps "+
			"%d MiB (nodefs.available): %w", disk.Available>>20, filepath.Dir(archive), need>>20, keep>>20, unix.ENOSPC)
	}
}
