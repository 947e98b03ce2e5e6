package plugins

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// preemption makes room for a pod that fits nowhere by deleting pods of lower
// priority on one node, as few and as unimportant ones as possible.
type preemption struct {
	d *Deps
	// At least minShare percent of the nodes in question, and minNodes, are tried.
	minShare, minNodes int
}

// candidate is a node where deleting the victims makes room.
type candidate struct {
	node       string
	victims    []*framework.PodInfo // most important first
	violations int                  // of disruption budgets
}

func newPreemption(args []byte, d *Deps) (framework.Plugin, error) {
	var a configv1.DefaultPreemptionArgs
	if err := decodeArgs(args, &a); err != nil {
		return nil, err
	}
	p := &preemption{d: d, minShare: 10, minNodes: 100}
	if v := a.MinCandidateNodesPercentage; v != nil {
		p.minShare = int(*v)
	}
	if v := a.MinCandidateNodesAbsolute; v != nil {
		p.minNodes = int(*v)
	}
	if p.minShare < 0 || p.minShare > 100 {
		return nil, fmt.Errorf("minCandidateNodesPercentage: Invalid value: %d: not in valid range [0, 100]", p.minShare)
	}
	if p.minNodes < 0 || p.minShare == 0 && p.minNodes == 0 {
		return nil, errors.New("minCandidateNodesPercentage, minCandidateNodesAbsolute: Invalid value: both cannot be zero")
	}
	return p, nil
}

func (*preemption) Name() string { return DefaultPreemptionName }

// PostFilter picks a node, deletes the victims and nominates the node.
func (p *preemption) PostFilter(ctx context.Context,
	c framework.PostFilterCycle) (*framework.Nomination, *framework.Status) {
	p.d.Preempts()
	n, st := p.preempt(ctx, c)
	if m := st.Message(); m != "" {
		return n, framework.NewStatus(st.Code, "preemption: "+m)
	}
	return n, st
}

func (p *preemption) preempt(ctx context.Context, c framework.PostFilterCycle) (*framework.Nomination, *framework.Status) {
	pod := p.latest(c.Pod())
	if why := p.barred(c, pod); why != "" {
		return nil, framework.NewStatus(framework.Unschedulable, why)
	}
	found, failed, err := p.candidates(c)
	if err != nil {
		return nil, framework.AsStatus(err)
	}
	if len(found) == 0 {
		return &framework.Nomination{}, framework.NewStatus(framework.Unschedulable, failed.Error())
	}
	if p.d.Review != nil {
		if found, err = p.review(ctx, c, pod, found); err != nil {
			return nil, framework.AsStatus(err)
		}
		if len(found) == 0 {
			return &framework.Nomination{}, framework.NewStatus(framework.Unschedulable,
				"no candidate node for preemption")
		}
	}
	best := pick(found, p.started)
	if err := p.evict(ctx, best, pod); err != nil {
		return nil, framework.AsStatus(err)
	}
	p.d.Preempted(len(best.victims))
	for _, o := range p.d.Lower(best.node, c.Pod().Priority) {
		p.d.Denominate(o.Pod)
	}
	return &framework.Nomination{Node: best.node}, nil
}

// review leaves the candidates that extenders leave.
func (p *preemption) review(ctx context.Context, c framework.PostFilterCycle, pod *corev1.Pod,
	found []candidate) (left []candidate, err error) {
	victims := map[string]*extenderv1.Victims{}
	for _, can := range found {
		v := &extenderv1.Victims{NumPDBViolations: int64(can.violations)}
		for _, o := range can.victims {
			v.Pods = append(v.Pods, o.Pod)
		}
		victims[can.node] = v
	}
	victims, err = p.d.Review(ctx, pod, victims, func(node string) (pods []*corev1.Pod) {
		for _, o := range c.Snapshot().Get(node).Pods {
			pods = append(pods, o.Pod)
		}
		return pods
	})
	if err != nil {
		return nil, err
	}
	for _, node := range slices.Sorted(maps.Keys(victims)) {
		v := victims[node]
		can := candidate{node: node, violations: int(v.NumPDBViolations)}
		for _, o := range c.Snapshot().Get(node).Pods {
			if slices.ContainsFunc(v.Pods, func(v *corev1.Pod) bool { return v.UID == o.UID() }) {
				can.victims = append(can.victims, o)
			}
		}
		p.sortByImportance(can.victims)
		left = append(left, can)
	}
	return left, nil
}

// barred tells why the pod may not preempt: it never does, or the victims of
// its last preemption are still ending.
func (p *preemption) barred(c framework.PostFilterCycle, pod *corev1.Pod) string {
	if pp := pod.Spec.PreemptionPolicy; pp != nil && *pp == corev1.PreemptNever {
		return "not eligible due to preemptionPolicy=Never."
	}
	n := c.Snapshot().Get(pod.Status.NominatedNodeName)
	if n == nil || c.Verdict(n).Is(framework.UnschedulableAndUnresolvable) {
		return ""
	}
	for _, o := range n.Pods {
		if o.Priority < c.Pod().Priority && endingByPreemption(o.Pod) {
			return "not eligible due to a terminating pod on the nominated node."
		}
	}
	return ""
}

func endingByPreemption(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue &&
			c.Reason == corev1.PodReasonPreemptionByScheduler
	})
}

// candidates tries nodes from a random one on. failed sums up why the others are none.
func (p *preemption) candidates(c framework.PostFilterCycle) (found []candidate, failed *framework.FitError, err error) {
	failed = &framework.FitError{NumAllNodes: c.Snapshot().Len(), Reasons: map[string]int{}}
	var nodes []*framework.NodeInfo
	for _, n := range c.Snapshot().Slots() {
		switch {
		case n == nil:
		case c.Verdict(n).Is(framework.Unschedulable):
			nodes = append(nodes, n)
		default:
			failed.Reasons["Preemption is not helpful for scheduling"]++
		}
	}
	if len(nodes) == 0 {
		return nil, failed, nil
	}
	budgets, err := p.d.Budgets()
	if err != nil {
		return nil, nil, err
	}
	enough := min(max(len(nodes)*p.minShare/100, p.minNodes), len(nodes))
	clean := false
	for i, at := 0, rand.IntN(len(nodes)); i < len(nodes); i++ {
		can, st := p.tryNode(c, nodes[(at+i)%len(nodes)], budgets)
		if !st.OK() {
			for _, r := range st.Reasons {
				failed.Reasons[r]++
			}
			continue
		}
		found = append(found, can)
		if clean = clean || can.violations == 0; clean && len(found) >= enough {
			break
		}
	}
	return found, failed, nil
}

// tryNode takes all pods of lower priority away and, if the pod fits then, puts
// back as many as it can, first those that a disruption budget protects.
func (p *preemption) tryNode(c framework.PostFilterCycle, n *framework.NodeInfo,
	budgets []*policyv1.PodDisruptionBudget) (candidate, *framework.Status) {
	n = n.Clone()
	var lower []*framework.PodInfo
	for _, o := range n.Pods {
		if o.Priority < c.Pod().Priority {
			lower = append(lower, o)
		}
	}
	if len(lower) == 0 {
		return candidate{}, framework.NewStatus(framework.UnschedulableAndUnresolvable, "No preemption victims found for incoming pod")
	}
	for _, o := range lower {
		n.RemovePod(o.UID())
	}
	if st := c.WhatIf(n); !st.OK() {
		return candidate{}, st
	}
	p.sortByImportance(lower)
	violating, free := splitByBudget(lower, budgets)
	can := candidate{node: n.Name()}
	spare := func(o *framework.PodInfo) bool {
		n.AddPod(o)
		if c.WhatIf(n).OK() {
			return true
		}
		n.RemovePod(o.UID())
		can.victims = append(can.victims, o)
		return false
	}
	for _, o := range violating {
		if !spare(o) {
			can.violations++
		}
	}
	for _, o := range free {
		spare(o)
	}
	p.sortByImportance(can.victims)
	if len(can.victims) == 0 {
		return can, framework.AsStatus(fmt.Errorf("expected at least one victim pod on node %q", n.Name()))
	}
	return can, nil
}

func (p *preemption) sortByImportance(pods []*framework.PodInfo) {
	slices.SortStableFunc(pods, func(a, b *framework.PodInfo) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), p.started(a).Compare(p.started(b)))
	})
}

// splitByBudget parts the pods whose loss would break a PodDisruptionBudget
// from the others; the order stays.
func splitByBudget(pods []*framework.PodInfo,
	budgets []*policyv1.PodDisruptionBudget) (violating, free []*framework.PodInfo) {
	allowed := make([]int32, len(budgets))
	for i, b := range budgets {
		allowed[i] = b.Status.DisruptionsAllowed
	}
	for _, p := range pods {
		broken := false
		for i, b := range budgets {
			if !covers(b, p.Pod) {
				continue
			}
			if allowed[i]--; allowed[i] < 0 {
				broken = true
			}
		}
		if broken {
			violating = append(violating, p)
		} else {
			free = append(free, p)
		}
	}
	return violating, free
}

// covers leaves out pods whose disruption the budget has counted already.
func covers(b *policyv1.PodDisruptionBudget, pod *corev1.Pod) bool {
	if b.Namespace != pod.Namespace || len(pod.Labels) == 0 {
		return false
	}
	sel, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil || sel.Empty() || !sel.Matches(labels.Set(pod.Labels)) {
		return false
	}
	_, counted := b.Status.DisruptedPods[pod.Name]
	return !counted
}

// pick prefers, in this order: fewest violated budgets, lowest highest
// priority, lowest sum of priorities, fewest victims, latest start of the most important ones.
func pick(all []candidate, started func(*framework.PodInfo) time.Time) candidate {
	rules := []func(c *candidate) int64{
		func(c *candidate) int64 { return -int64(c.violations) },
		func(c *candidate) int64 { return -int64(c.victims[0].Priority) },
		func(c *candidate) (sum int64) {
			for _, v := range c.victims {
				// so that fewer victims of negative priority are better, too
				sum -= int64(v.Priority) + math.MaxInt32 + 1
			}
			return sum
		},
		func(c *candidate) int64 { return -int64(len(c.victims)) },
		func(c *candidate) int64 {
			first := started(c.victims[0])
			for _, v := range c.victims[1:] {
				if s := started(v); v.Priority == c.victims[0].Priority && s.Before(first) {
					first = s
				}
			}
			return first.UnixNano()
		},
	}
	for _, rule := range rules {
		top := int64(math.MinInt64)
		var rest []candidate
		for i := range all {
			switch v := rule(&all[i]); {
			case v > top:
				top, rest = v, append(rest[:0:0], all[i])
			case v == top:
				rest = append(rest, all[i])
			}
		}
		if all = rest; len(all) == 1 {
			break
		}
	}
	return all[0]
}

// started is when the pod began to run; one that has not is the youngest.
func (p *preemption) started(pod *framework.PodInfo) time.Time {
	if s := p.latest(pod).Status.StartTime; s != nil {
		return s.Time
	}
	return time.Now().Truncate(time.Hour).Add(time.Hour)
}

func (p *preemption) latest(pod *framework.PodInfo) *corev1.Pod {
	if now, err := p.d.Pod(pod.Pod.Namespace, pod.Pod.Name); err == nil && now.UID == pod.UID() {
		return now
	}
	return pod.Pod
}

// evict deletes the victims, all at once, and returns the first failure.
func (p *preemption) evict(ctx context.Context, c candidate, by *corev1.Pod) error {
	var wg sync.WaitGroup
	errs := make([]error, len(c.victims))
	for i, v := range c.victims {
		victim := p.latest(v)
		if victim.DeletionTimestamp != nil {
			continue
		}
		wg.Go(func() { errs[i] = p.evictOne(ctx, victim, by, c.node) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (p *preemption) evictOne(ctx context.Context, victim, by *corev1.Pod, node string) error {
	note := fmt.Sprintf("Preempted by pod %v on node %v", by.UID, node)
	if p.d.Reject(victim.UID) {
		note += " (in kube-scheduler memory)."
	} else if err := p.remove(ctx, victim, by); apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("preempt pod %s/%s: %w", victim.Namespace, victim.Name, err)
	}
	p.d.Recorder.Eventf(victim, by, corev1.EventTypeNormal, "Preempted", "Preempting", "%s", note)
	return nil
}

// remove marks the victim with the condition DisruptionTarget (DIS-14) and deletes it.
func (p *preemption) remove(ctx context.Context, victim, by *corev1.Pod) error {
	scheduler := by.Spec.SchedulerName
	if scheduler == "" {
		scheduler = corev1.DefaultSchedulerName
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": victim.UID},
		"status": map[string]any{"conditions": []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler,
			Message:            scheduler + ": preempting to accommodate a higher priority pod",
			LastTransitionTime: metav1.Now(), ObservedGeneration: victim.Generation,
		}}},
	})
	if err != nil {
		return err
	}
	pods := p.d.Client.CoreV1().Pods(victim.Namespace)
	if _, err := pods.Patch(ctx, victim.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status"); err != nil {
		return err
	}
	return pods.Delete(ctx, victim.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &victim.UID}})
}
