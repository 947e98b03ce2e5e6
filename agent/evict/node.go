package evict

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Node looks at the node's signals and acts on them.
type Node struct {
	Plan Plan
	// MaxGrace is the longest that a pod may take to end for a soft threshold.
	MaxGrace time.Duration
	Layout   Layout
	// Signals measures what is left, Use what pods take, files only when they count.
	// Pods are all that have not ended.
	Signals func() map[string]Signal
	Pods    func() []*corev1.Pod
	Use     func(ctx context.Context, files bool) (func(*corev1.Pod) (PodUse, bool), error)
	// Free deletes what nobody uses on the disk of images, FreeLogs logs of pods that are
	// gone, FreeDead what containers have left that ended, on both disks.
	Free     func(ctx context.Context) error
	FreeLogs func(ctx context.Context) error
	FreeDead func(ctx context.Context) error
	// Evict ends a pod within a grace period of at least a second, Gone tells whether
	// it has ended, and nothing is left of its containers.
	// Count counts an eviction for a signal.
	Evict func(p *corev1.Pod, c Cause, grace time.Duration)
	Count func(signal string)
	Gone  func(p *corev1.Pod) bool
	// Tell writes a warning event of the node; Changed hears of other conditions.
	Tell    func(reason, message string)
	Changed func()
	// Waits are what Stall, if it has a share, decides by. It takes its looks at the times
	// of all others: at rest each Period, and as Stalled tells of waits for memory, once a
	// second at most. Other times are not needed: a wait that has Stall act makes Stalled
	// tell each time that it may.
	Waits func() (Waits, error)
	Stall Stall
	// Period is the time between two looks; Stalled has one made at once.
	Period  time.Duration
	Stalled <-chan struct{}
	Log     *slog.Logger

	mu         sync.Mutex
	conditions map[corev1.NodeConditionType]bool
	told       error
}

const (
	// goneWithin is how long the next look waits for an evicted pod to be gone, as
	// upstream: before that the signals do not show what its end frees.
	goneWithin = 30 * time.Second
	goneCheck  = 100 * time.Millisecond
)

// Conditions are those of pressure that hold; nil before the first look, which Observe takes.
func (n *Node) Conditions() map[corev1.NodeConditionType]bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.conditions)
}

// Run looks at the signals until ctx ends.
func (n *Node) Run(ctx context.Context) error {
	for {
		if p := n.look(ctx, time.Now()); p != nil {
			n.wait(ctx, p)
			n.Stall.Restart() // there is more memory than there was
			if ctx.Err() == nil {
				continue
			}
		}
		timer := time.NewTimer(n.Period)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-n.Stalled:
			timer.Stop()
		case <-timer.C: // disks and processes have no events
		}
	}
}

// wait waits for a pod's end. It has no event of its own, and it is waited for only
// after an eviction.
func (n *Node) wait(ctx context.Context, p *corev1.Pod) {
	ctx, cancel := context.WithTimeout(ctx, goneWithin)
	defer cancel()
	tick := time.NewTicker(goneCheck)
	defer tick.Stop()
	for !n.Gone(p) {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Observe takes the first look, before Run and without acting: so the first that others
// see of a node has its pressure.
func (n *Node) Observe() {
	n.step(time.Now())
}

// step takes a look at the signals, and returns what is to be acted on, and whether other
// conditions hold than before.
func (n *Node) step(now time.Time) (met *Met, changed bool) {
	have := n.Signals()
	n.stall(now, have)
	conditions, met := n.Plan.Step(now, have)
	n.mu.Lock()
	defer n.mu.Unlock()
	changed = n.conditions == nil || !maps.Equal(conditions, n.conditions)
	n.conditions = conditions
	return met, changed
}

// stall adds the signal MemoryStall, if there is one.
func (n *Node) stall(now time.Time, have map[string]Signal) {
	if n.Stall.Share == 0 {
		return
	}
	w, err := n.Waits()
	if err != nil {
		n.Log.Debug("waits for memory are not measured", "err", err)
		return
	}
	if s, ok := n.Stall.Step(now, w, have[MemoryAvailable]); ok {
		have[MemoryStall] = s
	}
}

// look takes a look at the signals, and returns the pod that it evicted, if any.
func (n *Node) look(ctx context.Context, now time.Time) *corev1.Pod {
	met, changed := n.step(now)
	if changed {
		n.Changed()
	}
	if met == nil {
		return nil
	}
	if met.Threshold.Signal == MemoryStall {
		n.Stall.Restart() // what is done about it is done once a period, also if no pod can be ended
	}
	short := string(signals[met.Threshold.Signal].resource)
	n.Tell("EvictionThresholdMet", "Attempting to reclaim "+short)
	for _, free := range n.frees(met.Threshold.Signal) {
		if err := free(ctx); err != nil && ctx.Err() == nil {
			n.Log.Warn("what nobody uses is not deleted", "resource", short, "err", err)
		}
		if n.Plan.Relieved(n.Signals()) {
			n.Log.Info("enough is free again without an end of pods", "resource", short)
			return nil
		}
	}
	return n.end(ctx, met)
}

// frees are what helps without an end of pods: what nobody can use again first (NPE-22).
func (n *Node) frees(signal string) []func(context.Context) error {
	images := signal == ImageFSAvailable || signal == ImageFSInodesFree
	switch {
	case !images && signal != NodeFSAvailable && signal != NodeFSInodesFree:
		return nil
	case !n.Layout.ImageFS:
		return []func(context.Context) error{n.FreeLogs, n.FreeDead, n.Free}
	case images:
		return []func(context.Context) error{n.FreeDead, n.Free}
	}
	return []func(context.Context) error{n.FreeLogs, n.FreeDead}
}

// end evicts the first pod by rank that may be, one a look.
func (n *Node) end(ctx context.Context, met *Met) *corev1.Pod {
	condition := signals[met.Threshold.Signal].condition
	use, err := n.Use(ctx, condition == corev1.NodeDiskPressure)
	if err != nil {
		n.Log.Warn("pods are not measured, their order is by priority alone", "err", err)
		use = func(*corev1.Pod) (PodUse, bool) { return PodUse{}, false }
	}
	pods := slices.DeleteFunc(n.Pods(), func(p *corev1.Pod) bool { return Critical(p) })
	if len(pods) == 0 {
		if n.told == nil {
			n.told = errors.New("no pod to evict")
			n.Log.Warn("the node is short of a resource and has no pod that may be evicted",
				"signal", met.Threshold.Signal, "why", met.shortage())
		}
		return nil
	}
	n.told = nil
	n.Layout.Rank(met.Threshold.Signal, pods, use)
	p := pods[0]
	u, _ := use(p)
	grace := time.Second // upstream's for hard thresholds
	if met.Grace > 0 {
		grace = max(grace, n.MaxGrace)
	}
	cause := met.Cause(p, u)
	n.Log.Info("a pod is evicted", "pod", p.Namespace+"/"+p.Name, "uid", p.UID, "signal", met.Threshold.Signal,
		"why", strings.TrimSpace(cause.Message))
	n.Evict(p, cause, grace)
	if n.Count != nil {
		n.Count(met.Threshold.Signal)
	}
	return p
}

// Critical pods are never evicted: the system's by priority, and those of manifests.
func Critical(p *corev1.Pod) bool {
	return p.Spec.Priority != nil && *p.Spec.Priority >= criticalPriority ||
		ofManifest(p)
}

// ofManifest tells whether a pod is of a manifest on the node, or of one that a server has.
func ofManifest(p *corev1.Pod) bool {
	from := p.Annotations["kubernetes.io/config.source"]
	return from == "file" || from == "http"
}
