package main

import (
	"context"
	"io"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/agent/logind"
	"github.com/shoal-project/shoal/agent/pod"
	podrecord "github.com/shoal-project/shoal/agent/record"
	"github.com/shoal-project/shoal/agent/shutdown"
)

// shutdownPeriods are the times that pods have when the machine shuts down,
// none when the configuration gives none.
func (a *agent) shutdownPeriods() []shutdown.Period {
	var out []shutdown.Period
	for _, p := range a.cfg.ShutdownGracePeriodByPodPriority {
		out = append(out, shutdown.Period{Priority: p.Priority, Grace: time.Duration(p.ShutdownGracePeriodSeconds) * time.Second})
	}
	if len(out) == 0 && a.cfg.ShutdownGracePeriod.Duration > 0 {
		out = shutdown.Periods(a.cfg.ShutdownGracePeriod.Duration, a.cfg.ShutdownGracePeriodCriticalPods.Duration)
	}
	return out
}

func (a *agent) shutdownFile() string {
	return filepath.Join(a.cfg.DataDir, "graceful_node_shutdown_state")
}

// shutdownTimes are when the last shutdown began and ended, zero if never.
func (a *agent) shutdownTimes() (start, end time.Time) {
	t, err := shutdown.Load(a.shutdownFile())
	if err != nil {
		a.log.Debug("metrics lack the shutdown", "error", err)
	}
	return t.Start, t.End
}

// leave ends pods in order when the machine shuts down.
func (a *agent) leave(ctx context.Context) error {
	periods := a.shutdownPeriods()
	warned := false
	m := &shutdown.Manager{
		Connect: func(ctx context.Context) (shutdown.Bus, error) {
			bus, err := logind.Connect(ctx)
			if err != nil {
				return nil, err
			}
			if limit, err := bus.MaxDelay(); err == nil && limit < shutdown.Total(periods) && !warned {
				warned = true
				a.log.Warn("logind lets a shutdown wait for less than the pods' time: raise InhibitDelayMaxSec in logind.conf", "inhibitDelayMaxSec", limit, "pods", shutdown.Total(periods))
			}
			return inhibitor{bus}, nil
		},
		Pods: ending{a.pods, a.ended}, Periods: periods, Leaving: a.setLeaving, Told: a.told, StateFile: a.shutdownFile(), Log: a.log,
	}
	return m.Run(ctx)
}

// setLeaving tells neighbours and the API that the node goes.
func (a *agent) setLeaving(leaving bool) {
	a.leaving.Store(leaving)
	a.node.Poke()
	message := "Shutdown manager detected shutdown event"
	if !leaving {
		message = "Shutdown manager detected shutdown cancellation"
	}
	a.events.node(a.cfg.NodeName, v1.EventTypeNormal, "Shutdown", message)
	if a.gossip == nil {
		return
	}
	if err := a.gossip.UpdateMeta(func(m *gossip.Meta) { m.Leaving = leaving }); err != nil {
		a.log.Warn("other nodes are not told that this one goes", "error", err)
	}
}

// refuse is why the node takes no pods now, nil when it does.
func (a *agent) refuse() *podrecord.Verdict {
	if !a.leaving.Load() {
		return nil
	}
	return &podrecord.Verdict{Reason: "NodeShutdown", Message: "Pod was rejected as the node is shutting down."}
}

// told waits until no status is on its way to the API.
func (a *agent) told(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		a.status.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
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

func (e ending) Active() []*v1.Pod {
	var out []*v1.Pod
	for _, p := range e.m.Pods() {
		if v, ok := e.m.View(p.UID); ok && !v.Ended {
			out = append(out, p)
		}
	}
	return out
}

func (e ending) End(p *v1.Pod, grace time.Duration) {
	const text = "Pod was terminated in response to imminent node shutdown."
	e.m.Evict(p.UID, podrecord.Verdict{Phase: v1.PodFailed, Reason: "Terminated", Message: text},
		&podrecord.Verdict{Reason: v1.PodReasonTerminationByKubelet, Message: text}, int64(grace/time.Second))
}
