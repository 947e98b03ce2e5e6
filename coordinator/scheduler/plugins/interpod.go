package plugins

import (
	"fmt"
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// interPodAffinity places pods near to or apart from others, by topology
// domain: their own required and preferred terms, and the terms of pods that
// run already.
type interPodAffinity struct {
	// hardWeight is the preference for domains whose pods require this pod near.
	hardWeight int64
	// ownOnly leaves out the preferences of running pods for pods without any.
	ownOnly bool
}

var (
	affinityRules     = framework.NewStatus(framework.UnschedulableAndUnresolvable, "node(s) didn't match pod affinity rules")
	antiAffinityRules = framework.NewStatus(framework.Unschedulable, "node(s) didn't match pod anti-affinity rules")
	existingAntiRules = framework.NewStatus(framework.Unschedulable, "node(s) didn't satisfy existing pods anti-affinity rules")
)

func newInterPodAffinity(args []byte, _ *Deps) (framework.Plugin, error) {
	var a configv1.InterPodAffinityArgs
	if err := decodeArgs(args, &a); err != nil {
		return nil, err
	}
	p := &interPodAffinity{hardWeight: 1, ownOnly: a.IgnorePreferredTermsOfExistingPods}
	if w := a.HardPodAffinityWeight; w != nil {
		if *w < 0 || *w > 100 {
			return nil, fmt.Errorf("hardPodAffinityWeight: Invalid value: %d: not in valid range [0-100]", *w)
		}
		p.hardWeight = int64(*w)
	}
	return p, nil
}

func (*interPodAffinity) Name() string { return InterPodAffinityName }

// Sign needs the labels only while some pod, this one or a running one, has
// terms. A class from before running ones had is not used once they do.
func (*interPodAffinity) Sign(key []byte, pod *framework.PodInfo, snap *framework.Snapshot) ([]byte, bool) {
	if !pod.HasAffinity() && !snap.HasPodsWithAffinity() {
		return append(key, 0), true
	}
	key = signBool(append(key, 1), snap.HasPodsWithAffinity())
	key = signLabels(signString(key, pod.Pod.Namespace), pod.Pod.Labels)
	if !pod.HasAffinity() {
		return append(key, 0), true
	}
	ok := true
	key = append(key, 1)
	if a := pod.Pod.Spec.Affinity.PodAffinity; a != nil {
		if key, ok = signProto(append(key, 2), a); !ok {
			return key, false
		}
	}
	if a := pod.Pod.Spec.Affinity.PodAntiAffinity; a != nil {
		if key, ok = signProto(append(key, 3), a); !ok {
			return key, false
		}
	}
	return key, true
}

func (p *interPodAffinity) PreFilter(pod *framework.PodInfo, snap *framework.Snapshot) (framework.NodeFilter,
	sets.Set[string], *framework.Status) {
	if len(pod.RequiredAffinity)+len(pod.RequiredAntiAffinity) == 0 && !snap.HasPodsWithAffinity() {
		return nil, nil, nil
	}
	f := &affinityFilter{pod: pod, tally: newTally(pod, snap)}
	for i := range pod.RequiredAffinity {
		f.near = append(f.near, f.counter(pod.RequiredAffinity[i].TopologyKey))
	}
	for i := range pod.RequiredAntiAffinity {
		f.apart = append(f.apart, f.counter(pod.RequiredAntiAffinity[i].TopologyKey))
	}
	f.selfMatch = len(f.near) > 0 && f.matchesAll(pod.Pod)
	return f, nil, nil
}

func (p *interPodAffinity) PreScore(pod *framework.PodInfo,
	snap *framework.Snapshot) (framework.Scorer, *framework.Status) {
	own := len(pod.PreferredAffinity)+len(pod.PreferredAntiAffinity) > 0
	if !own && (p.ownOnly || !snap.HasPodsWithAffinity()) {
		return nil, nil
	}
	return &affinityScore{pod: pod, own: own, hardWeight: p.hardWeight, tally: newTally(pod, snap)}, nil
}

func (p *interPodAffinity) Events() []framework.EventHint {
	return []framework.EventHint{
		{Resource: framework.Pod, Actions: framework.Add | framework.Delete | framework.UpdatePodLabel,
			Hint: affinityPodMatters},
		{Resource: framework.Node, Actions: framework.Add | framework.UpdateNodeLabel, Hint: affinityNodeMatters},
		{Resource: framework.Namespace, Actions: framework.UpdateOther},
	}
}

// affinityPodMatters says yes to a pod that a required affinity may now find,
// and to one that is gone (or changed) and stood in the way of an anti-affinity, either
// way round.
func affinityPodMatters(pod *corev1.Pod, e framework.Event) framework.Hint {
	p, err := framework.NewPodInfo(pod)
	if err != nil {
		return framework.Queue
	}
	is, was := podOf(e.New), podOf(e.Old)
	if is != nil && is.UID == pod.UID {
		return framework.Queue
	}
	// Namespace labels are not at hand: a selector over them counts as a match.
	matches := func(terms []framework.AffinityTerm, o *corev1.Pod) bool {
		for i := range terms {
			t := &terms[i]
			if (t.Namespaces.Has(o.Namespace) || !isNothing(t.NamespaceSelector)) &&
				t.Selector.Matches(labels.Set(o.Labels)) {
				return true
			}
		}
		return false
	}
	if is != nil && matches(p.RequiredAffinity, is) {
		return framework.Queue
	}
	if was == nil {
		return framework.QueueSkip
	}
	old, err := framework.NewPodInfo(was)
	return framework.Hint(err != nil || matches(p.RequiredAntiAffinity, was) || matches(old.RequiredAntiAffinity, pod))
}

func isNothing(s labels.Selector) bool {
	_, selectable := s.Requirements()
	return !selectable
}

func affinityNodeMatters(pod *corev1.Pod, e framework.Event) framework.Hint {
	n, p := nodeOf(e.New), pod.Spec.Affinity
	if n == nil || p == nil {
		return framework.Queue
	}
	var terms []corev1.PodAffinityTerm
	if p.PodAffinity != nil {
		terms = append(terms, p.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution...)
	}
	for i := range terms {
		if _, ok := n.Labels[terms[i].TopologyKey]; !ok {
			return framework.QueueSkip
		}
	}
	return framework.Queue
}

// tally keeps sums by topology domain together with each node's part in them,
// so that a changed node's part can be taken out again.
type tally struct {
	snap     *framework.Snapshot
	nsLabels labels.Set
	counters []*counter
	parts    [][]part // by slot
	building []part
}

type counter struct {
	topo  *framework.Topology
	sum   []int64 // by domain
	parts int     // how many parts are in it
}

type part struct {
	c      *counter
	domain int32
	n      int64
}

func newTally(pod *framework.PodInfo, snap *framework.Snapshot) tally {
	return tally{snap: snap, nsLabels: snap.Namespaces()[pod.Pod.Namespace]}
}

// counter makes a new sum by a topology key.
func (t *tally) counter(key string) *counter {
	return &counter{topo: t.snap.Topology(key)}
}

// shared returns the one sum by a key for terms of running pods.
func (t *tally) shared(key string) *counter {
	for _, c := range t.counters {
		if c.topo.Key == key {
			return c
		}
	}
	c := t.counter(key)
	t.counters = append(t.counters, c)
	return c
}

// begin takes out the slot's former part.
func (t *tally) begin(slot int) {
	t.parts = grow(t.parts, slot, nil)
	for _, p := range t.parts[slot] {
		p.c.sum[p.domain] -= p.n
		p.c.parts--
	}
	t.building = t.parts[slot][:0]
}

func (t *tally) add(c *counter, slot int, n int64) {
	d := c.topo.Of[slot]
	if d < 0 || n == 0 {
		return
	}
	c.sum = grow(c.sum, int(d), 0)
	c.sum[d] += n
	c.parts++
	t.building = append(t.building, part{c, d, n})
}

func (t *tally) end(slot int) {
	t.parts[slot] = t.building
	if len(t.building) == 0 {
		t.parts[slot] = nil
	}
}

// at returns the sum in the slot's domain, and whether the node is in any.
func (c *counter) at(slot int) (n int64, ok bool) {
	d := c.topo.Of[slot]
	if d < 0 {
		return 0, false
	}
	if int(d) < len(c.sum) {
		n = c.sum[d]
	}
	return n, true
}

type affinityFilter struct {
	tally
	pod       *framework.PodInfo
	near      []*counter // pods that match all required affinity terms, by term
	apart     []*counter // pods that match the anti-affinity term
	selfMatch bool
}

func (f *affinityFilter) Track(slot int, n *framework.NodeInfo) {
	f.begin(slot)
	defer f.end(slot)
	if n == nil {
		return
	}
	for _, p := range n.WithAntiAffinity {
		for i := range p.RequiredAntiAffinity {
			if t := &p.RequiredAntiAffinity[i]; t.Matches(f.pod.Pod, f.nsLabels) {
				f.add(f.shared(t.TopologyKey), slot, 1)
			}
		}
	}
	if len(f.near)+len(f.apart) == 0 {
		return
	}
	ns := f.snap.Namespaces()
	var near int64
	apart := make([]int64, len(f.apart))
	for _, p := range n.Pods {
		if len(f.near) > 0 && f.matchesAll(p.Pod) {
			near++
		}
		for i := range f.apart {
			if f.pod.RequiredAntiAffinity[i].Matches(p.Pod, ns[p.Pod.Namespace]) {
				apart[i]++
			}
		}
	}
	for _, c := range f.near {
		f.add(c, slot, near)
	}
	for i, c := range f.apart {
		f.add(c, slot, apart[i])
	}
}

func (f *affinityFilter) matchesAll(p *corev1.Pod) bool {
	ns := f.snap.Namespaces()[p.Namespace]
	for i := range f.pod.RequiredAffinity {
		if !f.pod.RequiredAffinity[i].Matches(p, ns) {
			return false
		}
	}
	return true
}

func (f *affinityFilter) Filter(n *framework.NodeInfo) *framework.Status {
	if !f.affinityHolds(n.Slot) {
		return affinityRules
	}
	for _, c := range f.apart {
		if sum, _ := c.at(n.Slot); sum > 0 {
			return antiAffinityRules
		}
	}
	for _, c := range f.counters {
		if sum, _ := c.at(n.Slot); sum > 0 {
			return existingAntiRules
		}
	}
	return nil
}

// affinityHolds: each term finds a pod in its domain. The first pod of a group
// that wants to be together finds none anywhere and may go where the labels are.
func (f *affinityFilter) affinityHolds(slot int) bool {
	found, anywhere := true, false
	for _, c := range f.near {
		sum, ok := c.at(slot)
		if !ok {
			return false
		}
		found = found && sum > 0
		anywhere = anywhere || c.parts > 0
	}
	return found || !anywhere && f.selfMatch
}

type affinityScore struct {
	tally
	pod        *framework.PodInfo
	own        bool
	hardWeight int64
}

func (s *affinityScore) Track(slot int, n *framework.NodeInfo) {
	s.begin(slot)
	defer s.end(slot)
	if n == nil {
		return
	}
	if s.own {
		ns := s.snap.Namespaces()
		for _, p := range n.Pods {
			s.terms(s.pod.PreferredAffinity, p.Pod, ns[p.Pod.Namespace], slot, 1)
			s.terms(s.pod.PreferredAntiAffinity, p.Pod, ns[p.Pod.Namespace], slot, -1)
		}
	}
	for _, p := range n.WithAffinity {
		for i := range p.RequiredAffinity {
			if t := &p.RequiredAffinity[i]; s.hardWeight > 0 && t.Matches(s.pod.Pod, s.nsLabels) {
				s.add(s.shared(t.TopologyKey), slot, s.hardWeight)
			}
		}
		s.terms(p.PreferredAffinity, s.pod.Pod, s.nsLabels, slot, 1)
		s.terms(p.PreferredAntiAffinity, s.pod.Pod, s.nsLabels, slot, -1)
	}
}

func (s *affinityScore) terms(terms []framework.AffinityTerm, pod *corev1.Pod, ns labels.Set, slot int, sign int64) {
	for i := range terms {
		if t := &terms[i]; t.Matches(pod, ns) {
			s.add(s.shared(t.TopologyKey), slot, sign*int64(t.Weight))
		}
	}
}

// Scores spreads the sums over 0..MaxScore.
func (s *affinityScore) Scores(slots []int32, out []int64) {
	low, high := int64(math.MaxInt64), int64(math.MinInt64)
	for i, slot := range slots {
		out[i] = 0
		for _, c := range s.counters {
			n, _ := c.at(int(slot))
			out[i] += n
		}
		low, high = min(low, out[i]), max(high, out[i])
	}
	for i, n := range out {
		out[i] = 0
		if high > low {
			out[i] = int64(float64(framework.MaxScore) * (float64(n-low) / float64(high-low)))
		}
	}
}
