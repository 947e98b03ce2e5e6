package nodehealth

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/coordinator/controller"
)

// Members is the gossip's view; nil when there is none.
type Members interface{ Members() []gossip.Member }

// paused is how long until a zone is looked at again in which nothing may be
// evicted; a node's recovery wakes it earlier.
const paused = 5 * time.Second

type reconciler struct {
	client  kubernetes.Interface
	events  record.EventRecorder
	nodes   corelisters.NodeLister
	podsIx  cache.Indexer
	members Members
	loop    *controller.Loop

	mu    sync.Mutex
	last  map[string]time.Time // node -> when its Lease or status was seen to change
	known map[string]types.UID
	seen  view

	// pace is what all workers decide by together.
	pace pace
}

// workers wait for writes most of the time.
const workers = 8

// New builds the controller; its keys are nodes.
func New(env controller.Env, members Members) (*controller.Loop, error) {
	core := env.Informers.Core().V1()
	if err := controller.IndexPodsByNode(core.Pods().Informer()); err != nil {
		return nil, err
	}
	r := &reconciler{
		client: env.Client, events: env.Recorder("node-controller"), members: members,
		nodes: core.Nodes().Lister(), podsIx: core.Pods().Informer().GetIndexer(),
		loop: controller.New("nodelifecycle", workers, env.Log),
		last: map[string]time.Time{}, known: map[string]types.UID{}, pace: newPace(),
	}
	r.loop.Reconciler = r
	r.loop.Needs(core.Pods().Informer())
	controller.Watch(r.loop, core.Nodes().Informer(), r.nodeChanged)
	controller.Watch(r.loop, env.Informers.Coordination().V1().Leases().Informer(), r.leaseChanged)
	return r.loop, nil
}

// leaseChanged only notes the time: the node is looked at when its grace period
// would end, not at each renewal.
func (r *reconciler) leaseChanged(_, lease *coordinationv1.Lease) {
	if lease != nil && lease.Namespace == corev1.NamespaceNodeLease {
		r.heard(lease.Name)
	}
}

func (r *reconciler) heard(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last[node] = time.Now()
}

func (r *reconciler) nodeChanged(old, node *corev1.Node) {
	if r.pace.count(old, node) {
		r.wakeUnready()
	}
	if node == nil {
		r.mu.Lock()
		delete(r.last, old.Name)
		r.mu.Unlock()
		r.loop.Add(old.Name)
		return
	}
	if old == nil || beat(old) != beat(node) {
		r.heard(node.Name)
	}
	r.loop.Add(node.Name)
}

func beat(node *corev1.Node) metav1.Time {
	if c := controller.NodeCondition(node, corev1.NodeReady); c != nil && c.Status != corev1.ConditionUnknown {
		return c.LastHeartbeatTime
	}
	return metav1.Time{}
}

// wakeUnready has the nodes looked at whose eviction depends on the others.
func (r *reconciler) wakeUnready() {
	nodes, _ := r.nodes.List(labels.Everything())
	for _, n := range nodes {
		if controller.NodeReadyStatus(n) != corev1.ConditionTrue {
			r.loop.Add(n.Name)
		}
	}
}

// Reconcile brings one node's conditions and taints up to date.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	node, err := r.nodes.Get(key)
	if apierrors.IsNotFound(err) {
		if uid := r.knows(key, ""); uid != "" {
			r.tell(key, uid, "RemovingNode", "Node %s event: Removing Node %s from Controller", key)
		}
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	if r.knows(key, node.UID) != node.UID {
		r.tell(key, node.UID, "RegisteredNode", "Node %s event: Registered Node %s in Controller", key)
	}
	now := time.Now()
	h := r.hear(node)
	is, after := silent(node, h, now)
	if is {
		if node, err = r.markUnknown(ctx, node, now); err != nil {
			return 0, gone(err)
		}
		after = 0
	}
	if controller.NodeReadyStatus(node) == corev1.ConditionUnknown && controller.NodeCondition(node, corev1.NodeReady) != nil {
		if err := r.markPods(ctx, node); err != nil {
			return 0, err
		}
	}
	ex, wait := r.execute(node, is, now)
	if wait > 0 && (after == 0 || wait < after) {
		after = wait
	}
	return after, gone(r.writeTaints(ctx, node, ex, now))
}

// knows notes the UID of a node that is told of, "" when it is gone, and returns
// the one from before.
func (r *reconciler) knows(node string, uid types.UID) types.UID {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.known[node]
	if r.known[node] = uid; uid == "" {
		delete(r.known, node)
	}
	return was
}

func (r *reconciler) tell(name string, uid types.UID, reason, format string, args ...any) {
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: uid}
	r.events.Eventf(ref, corev1.EventTypeNormal, reason, format, append([]any{name}, args...)...)
}

func (r *reconciler) hear(node *corev1.Node) heard {
	r.mu.Lock()
	last, ok := r.last[node.Name]
	if !ok {
		last = time.Now()
		r.last[node.Name] = last
	}
	r.mu.Unlock()
	if controller.NodeCondition(node, corev1.NodeReady) == nil {
		last = node.CreationTimestamp.Time
	}
	up, _ := r.gossip(node.Name)
	return heard{gossip: up, last: last}
}

// view is the gossip's word, taken at most once a second: each look copies all
// members.
type view struct {
	at time.Time
	up map[string]bool
	// massLoss: most agents are dead, so it is probably us who are cut off.
	massLoss bool
}

// gossip tells whether a node's agent is up, and whether most agents vanished.
func (r *reconciler) gossip(node string) (up, massLoss bool) {
	if r.members == nil {
		return false, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); now.Sub(r.seen.at) > time.Second {
		r.seen = viewOf(r.members.Members(), now)
	}
	return r.seen.up[node], r.seen.massLoss
}

func viewOf(members []gossip.Member, now time.Time) view {
	v := view{at: now, up: make(map[string]bool, len(members))}
	agents, dead := 0, 0
	for _, m := range members {
		if m.Role != gossip.RoleAgent {
			continue
		}
		agents++
		if m.State == gossip.StateDead {
			dead++
		}
		v.up[m.Name] = m.State.Up()
	}
	v.massLoss = agents > 1 && dead*2 > agents
	return v
}

func (r *reconciler) markUnknown(ctx context.Context, node *corev1.Node, now time.Time) (*corev1.Node, error) {
	conditions, changed := unknown(node, now)
	if !changed {
		return node, nil
	}
	marked := *node
	marked.Status.Conditions = conditions
	updated, err := r.client.CoreV1().Nodes().UpdateStatus(ctx, &marked, metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	r.tell(node.Name, node.UID, "NodeNotReady", "Node %s status is now: %s", "NodeNotReady")
	return updated, nil
}

// markPods makes the pods of a node that is not heard of not ready, so that
// their endpoints leave the slices.
func (r *reconciler) markPods(ctx context.Context, node *corev1.Node) error {
	var errs []error
	for _, p := range controller.PodsOnNode(r.podsIx, node.Name) {
		if !controller.PodReady(p) {
			continue
		}
		marked := p.DeepCopy()
		c := controller.PodCondition(&marked.Status, corev1.PodReady)
		c.Status, c.LastTransitionTime = corev1.ConditionFalse, metav1.Now()
		_, err := r.client.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, marked, metav1.UpdateOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err == nil {
			r.events.Event(p, corev1.EventTypeWarning, "NodeNotReady", "Node is not ready")
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// execute decides about the node's NoExecute taint. lease tells that the Lease
// has run out: without that, gossip's word moves no pod.
func (r *reconciler) execute(node *corev1.Node, lease bool, now time.Time) (ex execute, wait time.Duration) {
	disrupted, turned := r.pace.disruption(node, now)
	if turned {
		r.wakeUnready()
	}
	status := controller.NodeReadyStatus(node)
	switch {
	case status == corev1.ConditionTrue || disrupted:
		return clear, 0
	case controller.NodeCondition(node, corev1.NodeReady) == nil:
		return follow, 0
	case tainted(node):
		return follow, 0
	case status == corev1.ConditionUnknown && !lease:
		return follow, 0
	}
	if _, massLoss := r.gossip(node.Name); massLoss && status == corev1.ConditionUnknown {
		return follow, paused
	}
	return r.pace.may(node, now)
}

func (r *reconciler) writeTaints(ctx context.Context, node *corev1.Node, ex execute, now time.Time) error {
	want, changed := taints(node, ex, now)
	if !changed {
		return nil
	}
	if want == nil {
		want = []corev1.Taint{}
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion},
		"spec":     map[string]any{"taints": want},
	})
	if err != nil {
		return err
	}
	_, err = r.client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

func gone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
