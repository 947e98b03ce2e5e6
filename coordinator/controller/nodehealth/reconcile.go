package nodehealth

import (
	"context"
	"encoding/json"
	"errors"
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

// Members is the gossip's view. Changed gives a channel that holds a token
// whenever Members may answer differently.
type Members interface {
	Members() []gossip.Member
	Changed() <-chan struct{}
}

type reconciler struct {
	client  kubernetes.Interface
	events  record.EventRecorder
	nodes   corelisters.NodeLister
	podsIx  cache.Indexer
	members Members
	loop    *controller.Loop

	seen *book
	// pace is what all workers decide by together.
	pace pace
}

// workers wait for writes most of the time.
const workers = 8

// New builds the controller; its keys are nodes. Without members only Leases
// and status tell of nodes.
func New(env controller.Env, members Members) (*controller.Loop, error) {
	core := env.Informers.Core().V1()
	if err := controller.IndexPodsByNode(core.Pods().Informer()); err != nil {
		return nil, err
	}
	r := &reconciler{
		client:  env.Client,
		events:  env.Recorder("node-controller"),
		nodes:   core.Nodes().Lister(),
		podsIx:  core.Pods().Informer().GetIndexer(),
		members: members,
		loop:    controller.New("nodehealth", workers, env.Log),
		seen:    newBook(),
		pace:    newPace(),
	}
	r.loop.Reconciler = r
	r.loop.Needs(core.Pods().Informer())
	controller.Watch(r.loop, core.Nodes().Informer(), r.nodeChanged)
	controller.Watch(r.loop, env.Informers.Coordination().V1().Leases().Informer(), r.leaseChanged)
	if members != nil {
		r.loop.Started = func(ctx context.Context) {
			changed := members.Changed()
			r.look()
			go r.follow(ctx, changed)
		}
	}
	return r.loop, nil
}

// follow takes each change of the gossip; it ends with ctx.
func (r *reconciler) follow(ctx context.Context, changed <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		r.look()
	}
}

// look takes the gossip's view and has the nodes planned anew whose member
// changed.
func (r *reconciler) look() {
	members := map[string]gossip.Member{}
	for _, m := range r.members.Members() {
		members[m.Name] = m
	}
	r.pace.heed(members)
	for _, name := range r.seen.look(members) {
		r.loop.Add(name)
	}
}

// leaseChanged mostly only notes the time: the node is looked at when its grace
// period would end, not at each renewal.
func (r *reconciler) leaseChanged(old, lease *coordinationv1.Lease) {
	if lease == nil || lease.Namespace != corev1.NamespaceNodeLease {
		return
	}
	renewal := old != nil && !old.Spec.RenewTime.Equal(lease.Spec.RenewTime)
	r.seen.changed(lease.Name, renewal, time.Now())
	if !renewal {
		return
	}
	if n, err := r.nodes.Get(lease.Name); err == nil && controller.NodeReadyStatus(n) == corev1.ConditionUnknown {
		r.loop.Add(lease.Name)
	}
}

func (r *reconciler) nodeChanged(old, node *corev1.Node) {
	if r.pace.count(old, node) {
		r.wakeUnready()
	}
	if node == nil {
		r.seen.forget(old.Name)
		r.loop.Add(old.Name)
		return
	}
	if old == nil || beat(old) != beat(node) {
		r.seen.changed(node.Name, false, time.Now())
	}
	r.loop.Add(node.Name)
}

// beat is when the agent last posted its status. That its conditions were turned
// Unknown here, or back, is no sign of life: neither changes the time. One that
// never posted has none, whatever was written in its place.
func beat(node *corev1.Node) metav1.Time {
	if c := controller.NodeCondition(node, corev1.NodeReady); c != nil && c.Reason != reasonNever {
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
		if uid := r.seen.drop(key); uid != "" {
			r.tell(key, uid, "RemovingNode", "Node %s event: Removing Node %s from Controller", key)
		}
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	if r.seen.announce(key, node.UID) != node.UID {
		r.tell(key, node.UID, "RegisteredNode", "Node %s event: Registered Node %s in Controller", key)
	}
	now := time.Now()
	s := r.seen.of(key, now)
	p := planFor(node, s, now)
	if p.conditions != nil {
		if node, err = r.writeConditions(ctx, node, s, p); err != nil || p.verdict != silent {
			return 0, controller.IgnoreGone(err) // the write is an event: it brings the node here again
		}
	}
	if p.podsNotReady {
		if err := r.markPods(ctx, node); err != nil {
			return 0, err
		}
	}
	ex, wait, turned := r.pace.turn(node, p.execute, now)
	if turned {
		r.wakeUnready()
	}
	return controller.Sooner(p.again, wait), controller.IgnoreGone(r.writeTaints(ctx, node, ex, now))
}

func (r *reconciler) tell(name string, uid types.UID, reason, format string, args ...any) {
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: uid}
	r.events.Eventf(ref, corev1.EventTypeNormal, reason, format, append([]any{name}, args...)...)
}

// writeConditions returns the node with those of its plan. What is kept of those
// before is noted first, so that a deletion after the write forgets it.
func (r *reconciler) writeConditions(ctx context.Context, node *corev1.Node, s seen, p plan) (*corev1.Node, error) {
	r.seen.keep(node.Name, p.before)
	marked := *node
	marked.Status.Conditions = p.conditions
	updated, err := r.client.CoreV1().Nodes().UpdateStatus(ctx, &marked, metav1.UpdateOptions{})
	if err != nil {
		r.seen.keep(node.Name, s.before)
		return nil, err
	}
	reason := "NodeNotReady"
	if controller.NodeReadyStatus(&marked) == corev1.ConditionTrue {
		reason = "NodeReady"
	}
	r.tell(node.Name, node.UID, reason, "Node %s status is now: %s", reason)
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
