package member

import (
	"context"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
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
	members Members
	loop    *controller.Loop
	mu      sync.Mutex
	renewed map[string]time.Time
	before  map[string][]corev1.NodeCondition
	// known is the gossip's view at its last change, by name.
	known map[string]gossip.Member
}

// New builds the controller; its keys are nodes.
func New(env controller.Env, members Members) (*controller.Loop, error) {
	nodes := env.Informers.Core().V1().Nodes()
	r := &reconciler{
		client: env.Client, events: env.Recorder("node-controller"), nodes: nodes.Lister(), members: members,
		loop:    controller.New("member", 2, env.Log),
		renewed: map[string]time.Time{}, before: map[string][]corev1.NodeCondition{},
	}
	r.loop.Reconciler = r
	controller.Watch(r.loop, nodes.Informer(), r.nodeChanged)
	controller.Watch(r.loop, env.Informers.Coordination().V1().Leases().Informer(), r.leaseChanged)
	r.loop.Started = func(ctx context.Context) { go r.follow(ctx) }
	return r.loop, nil
}

// follow takes each change of the gossip; it ends with ctx.
func (r *reconciler) follow(ctx context.Context) {
	changed := r.members.Changed()
	r.look()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		r.look()
	}
}

// look takes the gossip's view and wakes the nodes whose member changed.
func (r *reconciler) look() {
	now := map[string]gossip.Member{}
	for _, m := range r.members.Members() {
		now[m.Name] = m
	}
	r.mu.Lock()
	before := r.known
	r.known = now
	r.mu.Unlock()
	for name, m := range now {
		if was, ok := before[name]; !ok || was.State != m.State || was.Role != m.Role {
			r.loop.Add(name)
		}
	}
}

func (r *reconciler) nodeChanged(old, node *corev1.Node) {
	if node == nil {
		r.mu.Lock()
		delete(r.renewed, old.Name)
		delete(r.before, old.Name)
		r.mu.Unlock()
		return
	}
	if old == nil || controller.NodeReadyStatus(old) != controller.NodeReadyStatus(node) {
		r.loop.Add(node.Name)
	}
}

// leaseChanged notes renewals, and wakes a node that was thought lost.
func (r *reconciler) leaseChanged(old, lease *coordinationv1.Lease) {
	if old == nil || lease == nil || lease.Namespace != corev1.NamespaceNodeLease || old.Spec.RenewTime.Equal(lease.Spec.RenewTime) {
		return
	}
	r.mu.Lock()
	r.renewed[lease.Name] = time.Now()
	r.mu.Unlock()
	if n, err := r.nodes.Get(lease.Name); err == nil && controller.NodeReadyStatus(n) == corev1.ConditionUnknown {
		r.loop.Add(lease.Name)
	}
}

// Reconcile writes one node's conditions if the gossip says so.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	node, err := r.nodes.Get(key)
	if apierrors.IsNotFound(err) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	r.mu.Lock()
	renewed, before := r.renewed[key], r.before[key]
	r.mu.Unlock()
	var conditions []corev1.NodeCondition
	switch judge(node, r.member(key), renewed) {
	case lost:
		conditions = unknown(node.Status.Conditions, time.Now())
		r.remember(key, node.Status.Conditions)
	case back:
		if before == nil {
			return 0, nil // another leader's doing: the agent says itself how it is
		}
		conditions = restored(node.Status.Conditions, before, time.Now())
		r.remember(key, nil)
	default:
		return 0, nil
	}
	changed := *node
	changed.Status.Conditions = conditions
	_, err = r.client.CoreV1().Nodes().UpdateStatus(ctx, &changed, metav1.UpdateOptions{})
	if err != nil {
		r.remember(key, before)
		if apierrors.IsNotFound(err) {
			return 0, nil
		}
		return 0, err
	}
	status := "NodeNotReady"
	if controller.NodeReadyStatus(&changed) == corev1.ConditionTrue {
		status = "NodeReady"
	}
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
	r.events.Eventf(ref, corev1.EventTypeNormal, status, "Node %s status is now: %s", node.Name, status)
	return 0, nil
}

func (r *reconciler) remember(key string, conditions []corev1.NodeCondition) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if conditions == nil {
		delete(r.before, key)
		return
	}
	r.before[key] = conditions
}

func (r *reconciler) member(name string) *gossip.Member {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m, ok := r.known[name]; ok {
		return &m
	}
	return nil
}
