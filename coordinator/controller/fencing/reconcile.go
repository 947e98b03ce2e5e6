package fencing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	coordinationlisters "k8s.io/client-go/listers/coordination/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/shoal-project/shoal/agent/fence"
	"github.com/shoal-project/shoal/coordinator/controller"
)

type reconciler struct {
	client  kubernetes.Interface
	events  record.EventRecorder
	nodes   corelisters.NodeLister
	leases  coordinationlisters.LeaseNamespaceLister
	podsIx  cache.Indexer
	volumes volumes
	ask     fence.Ask // nil: nobody can be asked
	loop    *controller.Loop

	mu sync.Mutex
	// renewed is when each node's Lease was last seen to be renewed.
	renewed map[string]time.Time
	// raised is since when each node's fence is known.
	raised map[string]known
	// told are pods, and nodes, that an event tells why they stay.
	told map[types.UID]string
}

// known is a fence with the voters on its Lease: if others stand there, all begins anew.
type known struct {
	fence, voters  string
	since, refused time.Time
}

func votersOn(l *coordinationv1.Lease) string { return strings.Join(fence.VotersOf(l), ",") }

// New builds the controller; its keys are nodes. ask asks members of the gossip; nil where
// there is none: then nodes for which others may vouch keep their pods.
func New(env controller.Env, ask fence.Ask) (*controller.Loop, error) {
	core, storage := env.Informers.Core().V1(), env.Informers.Storage().V1()
	leases := env.Informers.Coordination().V1().Leases()
	if err := controller.IndexPodsByNode(core.Pods().Informer()); err != nil {
		return nil, err
	}
	r := &reconciler{
		client: env.Client,
		events: env.Recorder("fencing-controller"),
		nodes:  core.Nodes().Lister(),
		leases: leases.Lister().Leases(corev1.NamespaceNodeLease),
		podsIx: core.Pods().Informer().GetIndexer(),
		volumes: volumes{
			client:  env.Client,
			claims:  core.PersistentVolumeClaims().Lister(),
			volumes: core.PersistentVolumes().Lister(),
			drivers: storage.CSIDrivers().Lister(),
		},
		ask:     ask,
		loop:    controller.New("fencing", 4, env.Log),
		renewed: map[string]time.Time{},
		raised:  map[string]known{},
		told:    map[types.UID]string{},
	}
	r.loop.Reconciler = r
	r.loop.Needs(core.PersistentVolumeClaims().Informer())
	r.loop.Needs(core.PersistentVolumes().Informer())
	r.loop.Needs(storage.CSIDrivers().Informer())
	controller.Watch(r.loop, core.Nodes().Informer(), r.nodeChanged)
	controller.Watch(r.loop, core.Pods().Informer(), r.podChanged)
	controller.Watch(r.loop, leases.Informer(), r.leaseChanged)
	return r.loop, nil
}

func (r *reconciler) nodeChanged(old, node *corev1.Node) {
	if node == nil {
		r.mu.Lock()
		delete(r.renewed, old.Name)
		delete(r.raised, old.Name)
		delete(r.told, old.UID)
		r.mu.Unlock()
		return
	}
	if old == nil || controller.NodeReadyStatus(old) != controller.NodeReadyStatus(node) {
		r.loop.Add(node.Name)
	}
}

// podChanged looks at a node again whose pods changed while it is lost or fenced.
func (r *reconciler) podChanged(old, pod *corev1.Pod) {
	if pod == nil {
		r.mu.Lock()
		delete(r.told, old.UID)
		r.mu.Unlock()
		return
	}
	if pod.Spec.NodeName == "" || fence.PolicyOf(pod) == fence.Stay {
		return
	}
	n, err := r.nodes.Get(pod.Spec.NodeName)
	if err == nil && controller.NodeReadyStatus(n) == corev1.ConditionUnknown {
		r.loop.Add(n.Name)
	}
}

func (r *reconciler) leaseChanged(old, lease *coordinationv1.Lease) {
	if lease == nil || lease.Namespace != corev1.NamespaceNodeLease {
		return
	}
	if old == nil || !old.Spec.RenewTime.Equal(lease.Spec.RenewTime) {
		r.mu.Lock()
		r.renewed[lease.Name] = time.Now()
		r.mu.Unlock()
	}
	if lease.Annotations[fence.Raised] != "" {
		r.loop.Add(lease.Name)
	}
}

// Reconcile does what is to be done about one node.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	s, pods, err := r.look(key)
	if err != nil {
		return 0, err
	}
	do, again := planFor(s, time.Now())
	switch do {
	case raise:
		if err = r.raise(ctx, s.node, s.lease); err == nil {
			err = r.replaceSome(ctx, pods, fence.StopIfReplaced, nil)
		}
		return fence.Wait(fence.CoveredFor(s.lease)), gone(err)
	case refuse:
		again, err = r.refuse(ctx, s)
		return again, gone(err)
	case replace:
		return 0, r.replaceSome(ctx, pods, fence.StopIfReplaced, nil)
	case act:
		return 0, r.act(ctx, s, pods)
	case lift:
		return 0, gone(r.lift(ctx, s.lease))
	}
	return again, nil
}

// gone hides that a Lease is not there any more: its node has to begin anew.
func gone(err error) error { return controller.IgnoreGone(err) }

func (r *reconciler) look(key string) (s seen, pods []*corev1.Pod, err error) {
	if s.node, err = r.nodes.Get(key); apierrors.IsNotFound(err) {
		return seen{}, nil, nil
	} else if err != nil {
		return s, nil, err
	}
	if s.lease, err = r.leases.Get(key); apierrors.IsNotFound(err) {
		s.lease = nil
	} else if err != nil {
		return s, nil, err
	}
	for _, p := range controller.PodsOnNode(r.podsIx, key) {
		if controller.PodTerminal(p) {
			continue
		}
		switch fence.PolicyOf(p) {
		case fence.Stop:
			s.stop++
			pods = append(pods, p)
		case fence.StopIfReplaced:
			s.replaced++
			pods = append(pods, p)
		}
	}
	s.cutOff = r.cutOff()
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.renewed[key].IsZero() {
		r.renewed[key] = now
	}
	s.renewed = r.renewed[key]
	if s.lease == nil {
		return s, pods, nil
	}
	if raised := s.lease.Annotations[fence.Raised]; raised != "" {
		if k := r.raised[key]; k.fence != raised || k.voters != votersOn(s.lease) {
			r.raised[key] = known{fence: raised, voters: votersOn(s.lease), since: now}
		}
		s.raised, s.refused = r.raised[key].since, r.raised[key].refused
	}
	return s, pods, nil
}

// cutOff tells whether most nodes are unknown.
func (r *reconciler) cutOff() bool {
	nodes, _ := r.nodes.List(labels.Everything())
	unknown := 0
	for _, n := range nodes {
		if controller.NodeReadyStatus(n) == corev1.ConditionUnknown {
			unknown++
		}
	}
	return 2*unknown > len(nodes)
}

// raise writes a fence on the Lease as it was seen: a renewal that came meanwhile has it
// refused.
func (r *reconciler) raise(ctx context.Context, node *corev1.Node, lease *coordinationv1.Lease) error {
	l := lease.DeepCopy()
	fence.Raise(l)
	if _, err := r.client.CoordinationV1().Leases(l.Namespace).Update(ctx, l, metav1.UpdateOptions{}); err != nil {
		return err
	}
	k := known{fence: l.Annotations[fence.Raised], voters: votersOn(l), since: time.Now()} // after the answer
	r.mu.Lock()
	r.raised[l.Name] = k
	r.mu.Unlock()
	r.events.Eventf(node, corev1.EventTypeWarning, "Fenced",
		"Node %s is lost: its pods that may move are replaced when it has surely stopped them", node.Name)
	return nil
}

// refuseAgain is the pause between two rounds in which too few refused.
const refuseAgain = 2 * time.Second

// refuse has the voters on a fenced Lease refuse its node. The Lease is asked of the API:
// what it names under the fence, the node needs most of, whatever it names later.
func (r *reconciler) refuse(ctx context.Context, s seen) (again time.Duration, err error) {
	raised := s.lease.Annotations[fence.Raised]
	l, err := r.client.CoordinationV1().Leases(s.lease.Namespace).Get(ctx, s.lease.Name, metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	if l.Annotations[fence.Raised] != raised || votersOn(l) != votersOn(s.lease) {
		return refuseAgain, nil // the informer will tell
	}
	err = fence.ErrNotRefused
	if r.ask != nil {
		err = fence.Refuse(ctx, r.ask, l.Name, fence.VotersOf(l), fence.LengthOf(raised))
	}
	if err != nil {
		r.notRefused(s.node, err.Error())
		return refuseAgain, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.told, s.node.UID)
	k := r.raised[l.Name]
	if k.fence == raised && k.voters == votersOn(l) {
		k.refused = time.Now()
		r.raised[l.Name] = k
	}
	return fence.Wait(fence.LengthOf(raised)), nil
}

// notRefused tells once why a node's pods are not replaced yet.
func (r *reconciler) notRefused(n *corev1.Node, why string) {
	r.mu.Lock()
	told := r.told[n.UID] == why
	r.told[n.UID] = why
	r.mu.Unlock()
	if !told {
		r.events.Eventf(n, corev1.EventTypeWarning, "NotFenced", "Pods of node %s wait: %s; once the machine is off, "+
			"the taint node.kubernetes.io/out-of-service on it has them replaced", n.Name, why)
	}
}

// act replaces what surely does not run any more.
func (r *reconciler) act(ctx context.Context, s seen, pods []*corev1.Pod) error {
	raised := s.lease.Annotations[fence.Raised]
	check := func(ctx context.Context) error {
		l, err := r.client.CoordinationV1().Leases(s.lease.Namespace).Get(ctx, s.lease.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if l.UID != s.lease.UID || l.Annotations[fence.Raised] != raised || l.Annotations[fence.Lifting] != "" {
			return errors.New("the fence is not raised any more")
		}
		if fence.CoveredFor(l) == 0 {
			return errors.New("the node is back with an agent that stops nothing by time")
		}
		return nil
	}
	return errors.Join(r.replaceSome(ctx, pods, fence.Stop, check),
		r.replaceSome(ctx, pods, fence.StopIfReplaced, nil))
}

// replaceSome deletes the pods of a policy by force. check tells by an error that that is
// not allowed any more; it is asked after a pod's version was read.
func (r *reconciler) replaceSome(
	ctx context.Context, pods []*corev1.Pod, policy fence.Policy, check func(context.Context) error,
) error {
	var errs []error
	for _, p := range pods {
		if fence.PolicyOf(p) == policy {
			errs = append(errs, r.replace(ctx, p, check))
		}
	}
	return errors.Join(errs...)
}

func (r *reconciler) replace(ctx context.Context, p *corev1.Pod, check func(context.Context) error) error {
	attachments, why, err := r.volumes.of(p)
	if err != nil {
		return err
	}
	others := r.others(p)
	if why == "" && check != nil {
		if why, err = r.volumes.kept(attachments, others); err != nil {
			return err
		}
	}
	if why != "" {
		r.stays(p, why)
		return nil
	}
	now, err := r.client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && now.UID != p.UID {
		return nil
	} else if err != nil {
		return err
	}
	if check != nil {
		if err := check(ctx); err != nil {
			return fmt.Errorf("replace pod %s/%s: %w", p.Namespace, p.Name, err)
		}
		// Before the pod: a crash in between leaves one that is replaced again.
		if err := r.volumes.detach(ctx, attachments, others); err != nil {
			return err
		}
	}
	zero := int64(0)
	err = r.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &zero,
		Preconditions:      &metav1.Preconditions{UID: &now.UID, ResourceVersion: &now.ResourceVersion},
	})
	if err == nil {
		r.events.Event(p, corev1.EventTypeWarning, "Replaced", "The pod's node is lost: it does not run there any more")
	}
	return gone(err)
}

// others are the pods of the same node that may use the same volumes.
func (r *reconciler) others(p *corev1.Pod) (list []*corev1.Pod) {
	for _, o := range controller.PodsOnNode(r.podsIx, p.Spec.NodeName) {
		if o.UID != p.UID && !controller.PodTerminal(o) {
			list = append(list, o)
		}
	}
	return list
}

// stays tells once why a pod is not replaced.
func (r *reconciler) stays(p *corev1.Pod, why string) {
	r.mu.Lock()
	told := r.told[p.UID] == why
	r.told[p.UID] = why
	r.mu.Unlock()
	if !told {
		r.events.Event(p, corev1.EventTypeWarning, "NotReplaced", "The pod's node is lost, and the pod stays: "+why)
	}
}

// lift takes the fence from a node that has stopped all of its pods, or whose agent knows
// of no fences, so that nothing is done by this one any more. Each pod that is left is
// written first, so that a deletion by a leader of before, which read it before the
// fence was being lifted, is refused from then on.
func (r *reconciler) lift(ctx context.Context, lease *coordinationv1.Lease) error {
	leases := r.client.CoordinationV1().Leases(lease.Namespace)
	raised := lease.Annotations[fence.Raised]
	l, err := leases.Get(ctx, lease.Name, metav1.GetOptions{})
	if err != nil || l.Annotations[fence.Raised] != raised || !liftable(l, raised) {
		return err
	}
	if l.Annotations[fence.Lifting] != raised {
		l.Annotations[fence.Lifting] = raised
		if _, err := leases.Update(ctx, l, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	if err := r.touch(ctx, lease.Name, raised); err != nil {
		return err
	}
	// The agent renews meanwhile, which changes nothing of this.
	l, err = leases.Get(ctx, lease.Name, metav1.GetOptions{})
	if err != nil || l.Annotations[fence.Lifting] != raised || !liftable(l, raised) {
		return err
	}
	delete(l.Annotations, fence.Raised)
	delete(l.Annotations, fence.Lifting)
	delete(l.Annotations, fence.Stopped)
	_, err = leases.Update(ctx, l, metav1.UpdateOptions{})
	return err
}

// liftable tells whether a node's pods have ended, or will not end by this fence.
func liftable(l *coordinationv1.Lease, raised string) bool {
	return l.Annotations[fence.Stopped] == raised || fence.CoveredFor(l) == 0
}

// survived is the annotation of pods that a fence did not end.
const survived = "fence.shoal.io/survived"

// touch writes each pod of the node that may be replaced.
func (r *reconciler) touch(ctx context.Context, node, raised string) error {
	list, err := r.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()})
	if err != nil {
		return err
	}
	var errs []error
	for i := range list.Items {
		p := &list.Items[i]
		if fence.PolicyOf(p) != fence.Stop {
			continue
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"uid": p.UID, "annotations": map[string]string{survived: raised}}})
		if err != nil {
			return err
		}
		_, err = r.client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) && p.UID != "" {
			err = r.stillThere(ctx, p, err)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// stillThere is nil when a pod that could not be written is another by now, or gone.
func (r *reconciler) stillThere(ctx context.Context, p *corev1.Pod, failed error) error {
	now, err := r.client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && now.UID != p.UID {
		return nil
	}
	return errors.Join(failed, err)
}
