package plugins

import (
	"fmt"
	"math"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// spread evens out how many pods of a kind are in each topology domain:
// spec.topologySpreadConstraints, or for pods without any the default constraints over the
// pods of the same Services and controller.
type spread struct {
	defaults []corev1.TopologySpreadConstraint
	// system is set for the built-in defaults, which do not require nodes to
	// have a zone.
	system bool
	owner  func(*corev1.Pod) labels.Selector
}

var (
	spreadMismatch = framework.NewStatus(framework.Unschedulable, "node(s) didn't match pod topology spread constraints")
	spreadNoLabel  = framework.NewStatus(framework.UnschedulableAndUnresolvable, "node(s) didn't match pod topology spread constraints (missing required label)")
)

var systemDefaults = []corev1.TopologySpreadConstraint{
	{TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, MaxSkew: 3},
	{TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.ScheduleAnyway, MaxSkew: 5},
}

func newSpread(args []byte, d *Deps) (framework.Plugin, error) {
	var a configv1.PodTopologySpreadArgs
	if err := decodeArgs(args, &a); err != nil {
		return nil, err
	}
	p := &spread{owner: d.OwnerSelector}
	if p.owner == nil {
		p.owner = func(*corev1.Pod) labels.Selector { return labels.NewSelector() }
	}
	switch a.DefaultingType {
	case configv1.SystemDefaulting, "":
		if len(a.DefaultConstraints) > 0 {
			return nil,
				fmt.Errorf(
					"defaultConstraints: Invalid value: when .defaultingType is %s, no defaultConstraints are allowed",
					configv1.SystemDefaulting)
		}
		p.defaults, p.system = systemDefaults, true
	case configv1.ListDefaulting:
		p.defaults = a.DefaultConstraints
	default:
		return nil, fmt.Errorf("defaultingType: Unsupported value: %q", a.DefaultingType)
	}
	return p, nil
}

func (*spread) Name() string { return PodTopologySpreadName }

func (p *spread) Sign(key []byte, pod *framework.PodInfo, _ *framework.Snapshot) ([]byte, bool) {
	own := pod.Pod.Spec.TopologySpreadConstraints
	if len(own) == 0 {
		sel := p.owner(pod.Pod)
		if sel.Empty() || len(p.defaults) == 0 {
			return append(key, 0), true
		}
		key = signString(append(key, 1), pod.Pod.Namespace)
		key = signString(key, sel.String())
		return signBool(key, sel.Matches(labels.Set(pod.Pod.Labels))), true
	}
	key = signString(append(key, 2), pod.Pod.Namespace)
	key = signLabels(signInt(key, int64(len(own))), pod.Pod.Labels)
	ok := true
	for i := range own {
		if key, ok = signProto(key, &own[i]); !ok {
			return key, false
		}
	}
	key, ok = (*nodeAffinityPlugin)(nil).Sign(key, pod, nil)
	if !ok {
		return key, false
	}
	return taintToleration{}.Sign(key, pod, nil)
}

func (p *spread) PreFilter(pod *framework.PodInfo, snap *framework.Snapshot) (framework.NodeFilter,
	sets.Set[string], *framework.Status) {
	cs, err := p.constraints(pod.Pod, snap, corev1.DoNotSchedule)
	if err != nil {
		return nil, nil, framework.AsStatus(err)
	}
	if len(cs) == 0 {
		return nil, nil, nil
	}
	return &spreadFilter{counts: cs}, nil, nil
}

func (p *spread) PreScore(pod *framework.PodInfo, snap *framework.Snapshot) (framework.Scorer, *framework.Status) {
	cs, err := p.constraints(pod.Pod, snap, corev1.ScheduleAnyway)
	if err != nil {
		return nil, framework.AsStatus(err)
	}
	if len(cs) == 0 {
		return nil, nil
	}
	return &spreadScore{counts: cs, allKeys: len(pod.Pod.Spec.TopologySpreadConstraints) > 0 || !p.system}, nil
}

func (p *spread) Events() []framework.EventHint {
	return []framework.EventHint{
		{Resource: framework.Pod, Hint: p.podMatters,
			// A toleration has nodes count that did not (nodeTaintsPolicy: Honor).
			Actions: framework.Add | framework.Delete | framework.UpdatePodLabel | framework.UpdatePodToleration},
		{Resource: framework.Node, Hint: p.nodeMatters,
			Actions: framework.Add | framework.Delete | framework.UpdateNodeLabel | framework.UpdateNodeTaint},
	}
}

// nodeMatters says yes to nodes with all labels that the pod must be spread by.
func (p *spread) nodeMatters(pod *corev1.Pod, e framework.Event) framework.Hint {
	cs, err := p.constraints(pod, framework.NewSnapshot(), corev1.DoNotSchedule)
	if err != nil {
		return framework.Queue
	}
	return framework.Hint(hasKeys(nodeOf(e.Old), cs) || hasKeys(nodeOf(e.New), cs))
}

// podMatters says yes to pods of the namespace that a constraint counts.
func (p *spread) podMatters(pod *corev1.Pod, e framework.Event) framework.Hint {
	cs, err := p.constraints(pod, framework.NewSnapshot(), corev1.DoNotSchedule)
	if err != nil {
		return framework.Queue
	}
	for _, o := range []*corev1.Pod{podOf(e.Old), podOf(e.New)} {
		if o == nil || o.Namespace != pod.Namespace {
			continue
		}
		if o.UID == pod.UID {
			return framework.Queue
		}
		for i := range cs {
			if cs[i].selector.Matches(labels.Set(o.Labels)) {
				return framework.Queue
			}
		}
	}
	return framework.QueueSkip
}

func hasKeys(n *corev1.Node, cs []*domainCount) bool {
	if n == nil {
		return false
	}
	for _, c := range cs {
		if _, ok := n.Labels[c.topo.Key]; !ok {
			return false
		}
	}
	return true
}

// constraints returns the pod's own constraints with this action, or the default ones.
func (p *spread) constraints(pod *corev1.Pod, snap *framework.Snapshot,
	action corev1.UnsatisfiableConstraintAction) ([]*domainCount, error) {
	list, owner := pod.Spec.TopologySpreadConstraints, labels.Selector(nil)
	allKeys := true
	if len(list) == 0 {
		owner, list, allKeys = p.owner(pod), p.defaults, !p.system
		if owner.Empty() {
			return nil, nil
		}
	}
	var out []*domainCount
	for i := range list {
		if list[i].WhenUnsatisfiable != action {
			continue
		}
		c, err := newDomainCount(&list[i], pod, snap)
		if err != nil {
			return nil, err
		}
		if owner != nil {
			c.selector = owner
		}
		c.self = c.selector.Matches(labels.Set(pod.Labels))
		out = append(out, c)
	}
	if allKeys {
		for _, c := range out {
			for _, o := range out {
				c.required = append(c.required, o.topo)
			}
		}
	}
	return out, nil
}

// domainCount counts, for one constraint, the matching pods in each domain, and
// which domains have a node that counts.
type domainCount struct {
	topo       *framework.Topology
	required   []*framework.Topology // nodes without these labels do not count
	selector   labels.Selector
	namespace  string
	maxSkew    int64
	minDomains int
	self       bool // the pod itself matches

	affinity    nodeaffinity.RequiredNodeAffinity
	anyAffinity bool // nodeAffinityPolicy: Ignore
	tolerations []corev1.Toleration
	honorTaints bool

	onNode []nodeCount // by slot
	pods   []int64     // by domain
	nodes  []int32     // by domain, that count

	// fewest is the lowest count of a domain, kept until something changes.
	fewest      int64
	fewestKnown bool
}

type nodeCount struct {
	domain int32 // -1 when the node does not count
	pods   int64 // matching pods, whether the node counts or not
}

func newDomainCount(in *corev1.TopologySpreadConstraint, pod *corev1.Pod, snap *framework.Snapshot) (*domainCount, error) {
	sel, err := metav1.LabelSelectorAsSelector(in.LabelSelector)
	if err != nil {
		return nil, err
	}
	for _, key := range in.MatchLabelKeys {
		if v, ok := pod.Labels[key]; ok {
			sel = addLabel(sel, key, v)
		}
	}
	c := &domainCount{
		topo: snap.Topology(in.TopologyKey), selector: sel, namespace: pod.Namespace,
		maxSkew: int64(in.MaxSkew), minDomains: 1,
		affinity: nodeaffinity.GetRequiredNodeAffinity(pod), tolerations: pod.Spec.Tolerations,
	}
	if in.MinDomains != nil {
		c.minDomains = int(*in.MinDomains)
	}
	c.anyAffinity = in.NodeAffinityPolicy != nil && *in.NodeAffinityPolicy == corev1.NodeInclusionPolicyIgnore
	c.honorTaints = in.NodeTaintsPolicy != nil && *in.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor
	return c, nil
}

func addLabel(s labels.Selector, key, value string) labels.Selector {
	reqs, _ := labels.SelectorFromSet(labels.Set{key: value}).Requirements()
	return s.Add(reqs...)
}

func (c *domainCount) track(slot int, n *framework.NodeInfo) {
	c.onNode = grow(c.onNode, slot, nodeCount{domain: -1})
	c.fewestKnown = false
	if old := c.onNode[slot]; old.domain >= 0 {
		c.pods[old.domain] -= old.pods
		c.nodes[old.domain]--
	}
	c.onNode[slot] = nodeCount{domain: -1}
	if n == nil {
		return
	}
	now := nodeCount{domain: -1, pods: c.matching(n)}
	if d := c.topo.Of[slot]; d >= 0 && c.counts(slot, n) {
		now.domain = d
		c.pods, c.nodes = grow(c.pods, int(d), 0), grow(c.nodes, int(d), 0)
		c.pods[d] += now.pods
		c.nodes[d]++
	}
	c.onNode[slot] = now
}

func (c *domainCount) counts(slot int, n *framework.NodeInfo) bool {
	for _, t := range c.required {
		if t.Of[slot] < 0 {
			return false
		}
	}
	if !c.anyAffinity {
		if ok, _ := c.affinity.Match(n.Node); !ok {
			return false
		}
	}
	return !c.honorTaints || !repels(n.Node, c.tolerations)
}

// matching counts the node's pods that the selector selects. Ending pods do not
// count, nor does anything for an empty selector.
func (c *domainCount) matching(n *framework.NodeInfo) (count int64) {
	if c.selector.Empty() {
		return 0
	}
	for _, p := range n.Pods {
		if p.Pod.DeletionTimestamp == nil && p.Pod.Namespace == c.namespace &&
			c.selector.Matches(labels.Set(p.Pod.Labels)) {
			count++
		}
	}
	return count
}

func (c *domainCount) inDomain(d int32) int64 {
	if int(d) >= len(c.pods) {
		return 0
	}
	return c.pods[d]
}

// minimum is the lowest count among domains that count; 0 when there are fewer
// of them than minDomains.
func (c *domainCount) minimum() int64 {
	if c.fewestKnown {
		return c.fewest
	}
	low, domains := int64(math.MaxInt32), 0
	for d, n := range c.nodes {
		if n > 0 {
			domains++
			low = min(low, c.pods[d])
		}
	}
	if domains < c.minDomains {
		low = 0
	}
	c.fewest, c.fewestKnown = low, true
	return low
}

type spreadFilter struct{ counts []*domainCount }

func (f *spreadFilter) Track(slot int, n *framework.NodeInfo) {
	for _, c := range f.counts {
		c.track(slot, n)
	}
}

func (f *spreadFilter) Filter(n *framework.NodeInfo) *framework.Status {
	for _, c := range f.counts {
		d := c.topo.Of[n.Slot]
		if d < 0 {
			return spreadNoLabel
		}
		skew := c.inDomain(d) - c.minimum()
		if c.self {
			skew++
		}
		if skew > c.maxSkew {
			return spreadMismatch
		}
	}
	return nil
}

type spreadScore struct {
	counts  []*domainCount
	allKeys bool // nodes that lack a key score nothing

	mark    []uint32 // by domain: the last round that saw it
	round   uint32
	ignored []bool
	sums    []float64
}

func (s *spreadScore) Track(slot int, n *framework.NodeInfo) {
	for _, c := range s.counts {
		c.track(slot, n)
	}
}

// Scores weighs the pods in the node's domains, more for keys with many
// domains, and turns the sum around: fewest pods, highest score.
func (s *spreadScore) Scores(slots []int32, out []int64) {
	s.ignored, s.sums = s.ignored[:0], s.sums[:0]
	left := 0
	for _, slot := range slots {
		ignore := s.allKeys && s.lacksKey(slot)
		s.ignored = append(s.ignored, ignore)
		s.sums = append(s.sums, 0)
		if !ignore {
			left++
		}
	}
	for _, c := range s.counts {
		hostname := c.topo.Key == corev1.LabelHostname
		size := left
		if !hostname {
			size = s.domains(c, slots)
		}
		weight := math.Log(float64(size + 2))
		for i, slot := range slots {
			d := c.topo.Of[slot]
			if s.ignored[i] || d < 0 {
				continue
			}
			count := c.onNode[slot].pods
			if !hostname {
				count = c.inDomain(d)
			}
			s.sums[i] += float64(count)*weight + float64(c.maxSkew-1)
		}
	}
	s.normalize(out)
}

func (s *spreadScore) normalize(out []int64) {
	low, high := int64(math.MaxInt64), int64(0)
	for i, sum := range s.sums {
		out[i] = int64(math.Round(sum))
		if !s.ignored[i] {
			low, high = min(low, out[i]), max(high, out[i])
		}
	}
	for i := range out {
		switch {
		case s.ignored[i]:
			out[i] = 0
		case high == 0:
			out[i] = framework.MaxScore
		default:
			out[i] = framework.MaxScore * (high + low - out[i]) / high
		}
	}
}

func (s *spreadScore) lacksKey(slot int32) bool {
	for _, c := range s.counts {
		if c.topo.Of[slot] < 0 {
			return true
		}
	}
	return false
}

// domains counts the domains among the nodes; those without the label are one together.
func (s *spreadScore) domains(c *domainCount, slots []int32) (count int) {
	s.round++
	none := false
	for i, slot := range slots {
		if s.ignored[i] {
			continue
		}
		d := c.topo.Of[slot]
		if d < 0 {
			if !none {
				none = true
				count++
			}
			continue
		}
		s.mark = grow(s.mark, int(d), 0)
		if s.mark[d] != s.round {
			s.mark[d] = s.round
			count++
		}
	}
	return count
}
