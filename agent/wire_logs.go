package main

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/agent/logs"
	"github.com/shoal-project/shoal/agent/quota"
)

// keepLogs keeps container logs small, and those of pods that are gone for a while.
func (p *podParts) keepLogs(b base) error {
	size, err := logSize("containerLogMaxSize", b.cfg.ContainerLogMaxSize)
	if err != nil {
		return err
	}
	most, err := logSize("podLogsMaxSize", b.cfg.PodLogsMaxSize)
	if err != nil {
		return err
	}
	p.past = &logs.Kept{
		Dir:      b.cfg.PodLogsDir,
		MaxAge:   b.cfg.DeletedPodLogMaxAge.Duration,
		MaxBytes: most,
		Lives: func(uid string) bool {
			_, ok := p.pods.View(types.UID(uid))
			return ok
		},
		Delete: quota.RemoveTree,
		Wake:   make(chan struct{}, 1),
		Log:    b.log,
	}
	p.rotator = &logs.Rotator{
		Logs:     p.pods.WrittenLogs,
		Dir:      b.cfg.PodLogsDir,
		Reopen:   b.runtime.ReopenContainerLog,
		MaxBytes: size,
		MaxFiles: b.cfg.ContainerLogMaxFiles,
		Log:      b.log,
	}
	if most > 0 {
		p.rotator.Rotated = p.past.Poke
	}
	p.pods.LogsIn, p.pods.KeepLogs = p.rotator.Watch, p.past.Keep
	if b.runtime.builtin == nil {
		return nil
	}
	if err := logs.CanHold(b.cfg.PodLogsDir); err != nil {
		b.log.Info("logs can pass containerLogMaxSize for 10 s", "podLogsDir", b.cfg.PodLogsDir, "because", err)
		return nil
	}
	p.rotator.Bounded, p.pods.Host.LogMaxBytes = true, size
	return nil
}

// logSize reads a size of the configuration; 0 if it names none.
func logSize(field, text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", field, err)
	}
	return q.Value(), nil
}
