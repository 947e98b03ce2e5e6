package framework

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// MaxScore is the highest score that a plugin may give after normalising.
const MaxScore int64 = 100

// Plugin is what all plugins have; it implements one or more of the extension
// points below.
type Plugin interface {
	Name() string
}

// PreEnqueuePlugin can keep a pod out of the active queue (extension point preEnqueue).
type PreEnqueuePlugin interface {
	Plugin
	PreEnqueue(pod *corev1.Pod) *Status
}

// QueueSortPlugin orders the active queue (queueSort); a profile has exactly one.
type QueueSortPlugin interface {
	Plugin
	Less(a, b *QueuedPod) bool
}

// EventPlugin declares which events can unblock a pod that the plugin refused.
type EventPlugin interface {
	Plugin
	Events() []EventHint
}

// SignPlugin is implemented by filter and score plugins whose verdict on a node
// depends on the pod only through what Sign appends to key. Pods with the same
// key form a class and share all work. ok is false for a pod that must stand
// alone; so does every pod of a profile with a plugin that cannot sign.
type SignPlugin interface {
	Plugin
	Sign(key []byte, pod *PodInfo, snap *Snapshot) (_ []byte, ok bool)
}

// FilterPlugin refuses nodes (preFilter and filter). PreFilter is called once a
// class. A nil NodeFilter or status Skip takes the plugin out of the cycle; the
// returned set, unless nil, limits the nodes by name.
type FilterPlugin interface {
	Plugin
	PreFilter(pod *PodInfo, snap *Snapshot) (NodeFilter, sets.Set[string], *Status)
}

// NodeFilter judges single nodes for a class. Its verdict is kept until the
// node changes, unless the filter is a Tracker, too.
type NodeFilter interface {
	Filter(n *NodeInfo) *Status
}

// Tracker is implemented by filters and scorers that count over all nodes. It
// is told each node that changed (nil when the slot was vacated) before it is
// asked, and asked anew in each cycle. Track with a changed copy of a node and
// then with the original again must leave no trace: what-if questions of
// preemption and nominated pods are put that way.
type Tracker interface {
	Track(slot int, n *NodeInfo)
}

// PostFilterPlugin acts when no node fits (postFilter), usually by preemption.
type PostFilterPlugin interface {
	Plugin
	PostFilter(ctx context.Context, c PostFilterCycle) (*Nomination, *Status)
}

// PostFilterCycle is what a PostFilterPlugin sees of the failed cycle.
type PostFilterCycle interface {
	Pod() *PodInfo
	Snapshot() *Snapshot
	// Verdict returns why the node was refused.
	Verdict(n *NodeInfo) *Status
	// WhatIf judges a changed copy of a node, nominated pods included.
	WhatIf(n *NodeInfo) *Status
}

// Nomination sets (or with an empty Node clears) status.nominatedNodeName.
type Nomination struct {
	Node string
}

// ScorePlugin ranks the nodes that passed (preScore and score). PreScore is
// called once a class. A nil Scorer or status Skip takes it out of the cycle. The Scorer is a
// NodeScorer or a FleetScorer.
type ScorePlugin interface {
	Plugin
	PreScore(pod *PodInfo, snap *Snapshot) (Scorer, *Status)
}

// JudgedScorePlugin ranks nodes by what its own filter has found out about them.
type JudgedScorePlugin interface {
	ScorePlugin
	// ScoreBy is asked where PreScore returned no Scorer. judged is the filter that the
	// plugin's PreFilter made for the pod; each node is scored after it has passed it.
	ScoreBy(judged NodeFilter) Scorer
}

// Scorer is a NodeScorer or a FleetScorer.
type Scorer any

// NodeScorer scores single nodes; a score is kept until the node changes. It is
// within 0..MaxScore, or the scorer is a Normalizer, too.
type NodeScorer interface {
	Score(n *NodeInfo) int64
}

// Normalizer brings the scores of all feasible nodes into 0..MaxScore.
type Normalizer interface {
	Normalize(scores []int64)
}

// FleetScorer scores all feasible nodes at once, from what it knows as a
// Tracker; slots and out run in parallel and the result is normalised.
type FleetScorer interface {
	Tracker
	Scores(slots []int32, out []int64)
}

// ReservePlugin keeps state outside the scheduler in step (reserve).
type ReservePlugin interface {
	Plugin
	// Reserve takes what the pod needs at the node. judged is the filter that the
	// plugin's PreFilter made for this pod, or for one of the same signature; nil
	// when it made none. What it found out about the node is there: a plugin keeps
	// nothing of a cycle in itself.
	Reserve(ctx context.Context, pod *PodInfo, node string, judged NodeFilter) *Status
	// Unreserve undoes Reserve; it is idempotent and safe without it.
	Unreserve(ctx context.Context, pod *PodInfo, node string)
}

// PermitPlugin can delay or refuse the binding (permit). With Wait the pod
// waits up to the duration for Allow or Reject.
type PermitPlugin interface {
	Plugin
	Permit(ctx context.Context, pod *PodInfo, node string) (*Status, time.Duration)
}

// PreBindPlugin prepares a node for the pod (preBind).
type PreBindPlugin interface {
	Plugin
	PreBind(ctx context.Context, pod *PodInfo, node string) *Status
}

// PreFlightPlugin is a PreBindPlugin that tells beforehand whether it has anything to do
// for the pod, which takes longer than a binding.
type PreFlightPlugin interface {
	PreBindPlugin
	PreFlight(pod *PodInfo) bool
}

// BindPlugin binds the pod (bind); Skip leaves it to the next one.
type BindPlugin interface {
	Plugin
	Bind(ctx context.Context, pod *PodInfo, node string) *Status
}

// PostBindPlugin is told after the binding (postBind).
type PostBindPlugin interface {
	Plugin
	PostBind(ctx context.Context, pod *PodInfo, node string)
}
