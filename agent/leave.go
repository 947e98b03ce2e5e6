package main

import (
	"context"
	"io"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/agent/logind"
	"github.com/shoal-project/shoal/agent/pod"
	podrecord "github.com/shoal-project/shoal/agent/record"
	"github.com/shoal-project/shoal/agent/shutdown"
)

// leave ends pods in order when the machine shuts down.
func (a *agent) leave(ctx context.Context) error {
	bus, err := logind.Connect(ctx)
	if err != nil {
		a.log.Warn("shutdowns of the machine are not noticed: pods will be cut off", "error", err)
		<-ctx.Done()
		return nil
	}
	defer bus.Close()
	grace := a.cfg.ShutdownGracePeriod.Duration
	if limit, err := bus.MaxDelay(); err == nil && limit < grace {
		a.log.Warn("logind lets a shutdown wait for less than shutdownGracePeriod: raise InhibitDelayMaxSec", "inhibitDelayMaxSec", limit, "shutdownGracePeriod", grace)
	}
	m := &shutdown.Manager{Bus: inhibitor{bus}, Pods: ending{a.pods, a.ended}, Grace: grace,
		Critical: a.cfg.ShutdownGracePeriodCriticalPods.Duration, Leaving: a.setLeaving, Log: a.log}
	return m.Run(ctx)
}

// setLeaving tells neighbours and the API that the node goes.
func (a *agent) setLeaving(leaving bool) {
	a.leaving.Store(leaving)
	a.node.Poke()
	if a.gossip == nil {
		return
	}
	if err := a.gossip.UpdateMeta(func(m *gossip.Meta) { m.Leaving = leaving }); err != nil {
		a.log.Warn("other nodes are not told that this one goes", "error", err)
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
		if v, ok := e.m.View(p.UID); ok && v.Observed.Running() {
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
