package main

import (
	"context"
	"io"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/logind"
	"github.com/shoal-project/shoal/agent/pod"
	podrecord "github.com/shoal-project/shoal/agent/record"
	"github.com/shoal-project/shoal/agent/shutdown"
)

// shutdownPeriods are the times that pods have when the machine shuts down,
// none when the configuration gives none.
func shutdownPeriods(cfg *config.Config) []shutdown.Period {
	var out []shutdown.Period
	for _, p := range cfg.ShutdownGracePeriodByPodPriority {
		out = append(out, shutdown.Period{
			Priority: p.Priority,
			Grace:    time.Duration(p.ShutdownGracePeriodSeconds) * time.Second,
		})
	}
	if len(out) == 0 && cfg.ShutdownGracePeriod.Duration > 0 {
		out = shutdown.Periods(cfg.ShutdownGracePeriod.Duration, cfg.ShutdownGracePeriodCriticalPods.Duration)
	}
	return out
}

func shutdownFile(cfg *config.Config) string {
	return filepath.Join(cfg.DataDir, "graceful_node_shutdown_state")
}

// newShutdown ends pods in order when the machine shuts down; leaving tells others
// that it does.
func newShutdown(b base, p *podParts, periods []shutdown.Period, leaving func(bool)) *shutdown.Manager {
	return &shutdown.Manager{
		Connect:   connectLogind,
		Pods:      ending{p.pods, p.changed},
		Periods:   periods,
		Leaving:   leaving,
		Told:      p.status.Told,
		StateFile: shutdownFile(b.cfg),
		Log:       b.log,
	}
}

func connectLogind(ctx context.Context) (shutdown.Bus, error) {
	bus, err := logind.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return inhibitor{bus}, nil
}

type inhibitor struct{ *logind.Client }

func (i inhibitor) Delay() (io.Closer, error) {
	return i.Inhibit("kubelet", "Kubernetes Node Shutdown")
}

// ending is the pods as a shutdown ends them.
type ending struct {
	m       *pod.Manager
	changed chan struct{}
}

func (e ending) Changed() <-chan struct{} { return e.changed }

func (e ending) Active() []*corev1.Pod { return e.m.Active() }

func (e ending) End(p *corev1.Pod, grace time.Duration) {
	const text = "Pod was terminated in response to imminent node shutdown."
	e.m.Evict(p.UID, podrecord.Verdict{Phase: corev1.PodFailed, Reason: "Terminated", Message: text},
		&podrecord.Verdict{Reason: corev1.PodReasonTerminationByKubelet, Message: text}, int64(grace/time.Second))
}
