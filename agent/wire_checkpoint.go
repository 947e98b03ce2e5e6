package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	criapi "k8s.io/cri-api/pkg/apis"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/dump"
	"github.com/shoal-project/shoal/agent/record"
)

// checkpointsDir is where archives of containers lie, as the kubelet's.
func checkpointsDir(cfg *config.Config) string { return filepath.Join(cfg.RootDir, "checkpoints") }

// checkpoints has the runtime write containers into archives.
type checkpoints struct {
	dir     string
	runtime criapi.RuntimeService
	log     *slog.Logger
}

// newCheckpoints makes the directory, which only root may enter: archives have the
// containers' memory.
func newCheckpoints(b base) (checkpoints, error) {
	dir := checkpointsDir(b.cfg)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return checkpoints{}, fmt.Errorf("checkpoints: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return checkpoints{}, fmt.Errorf("checkpoints: %w", err)
	}
	if err := dump.Sweep(dir); err != nil {
		b.log.Warn("what an agent of before left of checkpoints is not removed", "err", err)
	}
	return checkpoints{dir: dir, runtime: b.runtime.brief, log: b.log}, nil
}

// make is for server.Server. The name of the archive is the kubelet's.
func (c checkpoints) make(ctx context.Context, pod *corev1.Pod, o *record.Observation, timeout int64) (string, error) {
	at := time.Now()
	path := filepath.Join(c.dir, fmt.Sprintf("checkpoint-%s_%s-%s-%s.tar", pod.Name, pod.Namespace, o.Name,
		at.Format(time.RFC3339)))
	err := c.runtime.CheckpointContainer(ctx,
		&criv1.CheckpointContainerRequest{ContainerId: o.ID, Location: path, Timeout: timeout})
	if err != nil {
		return "", err
	}
	c.log.Info("a container was written into a checkpoint", "namespace", pod.Namespace, "pod", pod.Name,
		"container", o.Name, "archive", path, "took", time.Since(at))
	return path, nil
}
