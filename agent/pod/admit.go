package pod

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/agent/pod/launch"
	"github.com/shoal-project/shoal/agent/record"
)

// Admit tells why the node cannot take a pod beside the others, nil when it
// can. It is pure; the reasons are the kubelet's (pkg/kubelet/lifecycle).
func Admit(p *corev1.Pod, others []*corev1.Pod, node *corev1.Node, allocatable corev1.ResourceList) *record.Verdict {
	if v := fits(p, others, extended(allocatable, node)); v != nil {
		return v
	}
	if v := ports(p, others); v != nil {
		return v
	}
	if v := unsupported(p); v != nil {
		return v
	}
	if node == nil {
		return nil
	}
	want, have := p.Spec.NodeSelector[corev1.LabelOSStable], node.Labels[corev1.LabelOSStable]
	if want != have && want != "" && have != "" {
		return &record.Verdict{Reason: "PodOSSelectorNodeLabelDoesNotMatch",
			Message: "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"}
	}
	if p.Spec.OS != nil && p.Spec.OS.Name != corev1.Linux {
		return &record.Verdict{Reason: "PodOSNotSupported",
			Message: "Failed to admit pod as the OS field doesn't match node OS"}
	}
	can := ptr.Deref(node.Status.Features, corev1.NodeFeatures{}).SupplementalGroupsPolicy
	if strictGroups(p) && !ptr.Deref(can, false) {
		return &record.Verdict{Reason: "SupplementalGroupsPolicyNotSupported",
			Message: "SupplementalGroupsPolicy=Strict is not supported in this node"}
	}
	if ok, err := nodeaffinity.GetRequiredNodeAffinity(p).Match(node); err != nil || !ok {
		return &record.Verdict{Reason: "NodeAffinity",
			Message: "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"}
	}
	return tainted(p, node)
}

// strictGroups tells whether a pod must not be in the groups that its image gives its user.
func strictGroups(p *corev1.Pod) bool {
	s := p.Spec.SecurityContext
	return s != nil && ptr.Deref(s.SupplementalGroupsPolicy, "") == corev1.SupplementalGroupsPolicyStrict
}

// tainted refuses what would be evicted again at once; of the other taints the scheduler
// knows, which a pod with a nodeName goes past.
func tainted(p *corev1.Pod, node *corev1.Node) *record.Verdict {
	for i := range node.Spec.Taints {
		t := &node.Spec.Taints[i]
		if t.Effect == corev1.TaintEffectNoExecute &&
			!schedulinghelper.TolerationsTolerateTaint(klog.Background(), p.Spec.Tolerations, t, false) {
			return &record.Verdict{Reason: "TaintToleration",
				Message: "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate"}
		}
	}
	return nil
}

// extended adds what others advertise on the node to its own resources.
func extended(allocatable corev1.ResourceList, node *corev1.Node) corev1.ResourceList {
	if node == nil || len(allocatable) == 0 {
		return allocatable
	}
	out := maps.Clone(allocatable)
	for name, q := range node.Status.Allocatable {
		if _, own := out[name]; !own && strings.Contains(string(name), "/") {
			out[name] = q
		}
	}
	return out
}

// lack is a resource that the node has too little of for a pod: milli-CPUs, or the
// resource's own unit.
type lack struct {
	name             corev1.ResourceName
	want, used, have int64
}

// fits holds the pod's requests against what the others leave.
func fits(p *corev1.Pod, others []*corev1.Pod, allocatable corev1.ResourceList) *record.Verdict {
	list := lacks(p, others, allocatable)
	if len(list) == 0 {
		return nil
	}
	return outOf(list[0])
}

// lacks are what the others leave too little of.
func lacks(p *corev1.Pod, others []*corev1.Pod, allocatable corev1.ResourceList) (out []lack) {
	if len(allocatable) == 0 {
		return nil
	}
	if n := allocatable.Pods().Value(); int64(len(others))+1 > n {
		out = append(out, lack{corev1.ResourcePods, 1, int64(len(others)), n})
	}
	want := requests(p)
	used := corev1.ResourceList{}
	for _, o := range others {
		for name, q := range requests(o) {
			sum := used[name]
			sum.Add(q)
			used[name] = sum
		}
	}
	for _, name := range inOrder(want) {
		q := want[name]
		have, known := allocatable[name]
		if q.IsZero() || !known && strings.Contains(string(name), "/") {
			continue // as upstream: the scheduler alone counts extended resources that the node does not
		}
		in := used[name]
		l := lack{name, q.Value(), in.Value(), have.Value()}
		if name == corev1.ResourceCPU {
			l = lack{name, q.MilliValue(), in.MilliValue(), have.MilliValue()}
		}
		if l.want+l.used > l.have {
			out = append(out, l)
		}
	}
	return out
}

// requests are what the pod takes of the node's resources. Extended resources for which
// the scheduler made a claim come with the claim's devices (KEP-5004).
func requests(p *corev1.Pod) corev1.ResourceList {
	made := p.Status.ExtendedResourceClaimStatus
	if made == nil {
		return resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
	}
	p = p.DeepCopy()
	record.EachContainer(p, func(c *corev1.Container) {
		for _, m := range made.RequestMappings {
			if m.ContainerName == c.Name {
				delete(c.Resources.Requests, corev1.ResourceName(m.ResourceName))
			}
		}
	})
	return resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
}

// inOrder are the resources as the kubelet looks at them: its own, then others by name.
func inOrder(list corev1.ResourceList) []corev1.ResourceName {
	own := []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}
	rank := func(name corev1.ResourceName) int {
		if i := slices.Index(own, name); i >= 0 {
			return i
		}
		return len(own)
	}
	return slices.SortedFunc(maps.Keys(list), func(a, b corev1.ResourceName) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b))
	})
}

func outOf(l lack) *record.Verdict {
	return &record.Verdict{Reason: "OutOf" + string(l.name),
		Message: fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
			l.name, l.want, l.used, l.have)}
}

// ports holds the pod's host ports against those of the others.
func ports(p *corev1.Pod, others []*corev1.Pod) *record.Verdict {
	mine := hostPorts(p)
	if len(mine) == 0 {
		return nil
	}
	for _, o := range others {
		for _, a := range hostPorts(o) {
			for _, b := range mine {
				if a.port == b.port && a.protocol == b.protocol && (a.ip == b.ip || a.ip == "" || b.ip == "") {
					return &record.Verdict{Reason: "NodePorts",
						Message: "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"}
				}
			}
		}
	}
	return nil
}

type hostPort struct {
	port     int32
	protocol corev1.Protocol
	ip       string
}

// hostPorts are those that a pod has for as long as it runs: init containers that end free
// theirs before, and the scheduler does not count them either.
func hostPorts(p *corev1.Pod) []hostPort {
	var out []hostPort
	ends := map[string]bool{}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		ends[c.Name] = !record.Sidecar(c)
	}
	record.EachContainer(p, func(c *corev1.Container) {
		if ends[c.Name] {
			return
		}
		for _, port := range c.Ports {
			n := port.HostPort
			if p.Spec.HostNetwork && n == 0 {
				n = port.ContainerPort
			}
			if n == 0 {
				continue
			}
			h := hostPort{port: n, protocol: port.Protocol, ip: port.HostIP}
			if h.protocol == "" {
				h.protocol = corev1.ProtocolTCP
			}
			if h.ip == "0.0.0.0" || h.ip == "::" {
				h.ip = ""
			}
			out = append(out, h)
		}
	})
	return out
}

// reasonEvicted is that of a pod that the node ends, or does not take, for want of something.
const reasonEvicted = "Evicted"

// pressed tells why a node under pressure does not take a pod: it takes the system's;
// where memory alone is short, those too that ask for some or tolerate the lack.
func pressed(p *corev1.Pod, conditions map[corev1.NodeConditionType]bool) *record.Verdict {
	if len(conditions) == 0 || p.Spec.Priority != nil && *p.Spec.Priority >= launch.CriticalPriority {
		return nil
	}
	if len(conditions) == 1 && conditions[corev1.NodeMemoryPressure] {
		taint := &corev1.Taint{Key: corev1.TaintNodeMemoryPressure, Effect: corev1.TaintEffectNoSchedule}
		if launch.QoS(p) != corev1.PodQOSBestEffort ||
			schedulinghelper.TolerationsTolerateTaint(klog.Background(), p.Spec.Tolerations, taint, false) {
			return nil
		}
	}
	return &record.Verdict{Reason: reasonEvicted,
		Message: fmt.Sprintf("The node had condition: %v. ", slices.Sorted(maps.Keys(conditions)))}
}

// admit decides once whether the node takes the pod; false: that waits for others to end.
func (w *worker) admit(p *corev1.Pod, now time.Time) bool {
	if len(w.rec.Containers) == 0 && w.rec.Source != SourceFile {
		// Else it ran here before: the record was lost, not the right to run.
		w.waitForRoom(true) // before others are looked at: one may go meanwhile
		v, waits := w.refusal(p)
		if waits {
			return false
		}
		w.waitForRoom(false)
		if v != nil {
			w.rec.Ended = &record.Verdict{Phase: corev1.PodFailed, Reason: v.Reason,
				Message: "Pod was rejected: " + v.Message}
			w.rec.Released = true
			w.m.Events.Event(p, "", corev1.EventTypeWarning, v.Reason, v.Message)
		}
	}
	w.rec.Admitted, w.starting = metav1.NewTime(now), true
	return true
}

// refusal tells why the node does not take the pod, or that others end for it first.
func (w *worker) refusal(p *corev1.Pod) (v *record.Verdict, waits bool) {
	var node *corev1.Node
	if w.m.Node != nil {
		node = w.m.Node()
	}
	v = w.m.Sysctls.Admit(p)
	if v == nil && w.m.WithoutAppArmor && launch.AsksForAppArmor(p) {
		v = &record.Verdict{Reason: "AppArmor", Message: "Cannot enforce AppArmor: AppArmor is not enabled on the host"}
	}
	if v == nil && w.m.Refuse != nil {
		v = w.m.Refuse()
	}
	if v == nil && w.m.Pressure != nil {
		v = pressed(p, w.m.Pressure())
	}
	if v != nil {
		return v, false
	}
	others := w.m.others(p, true)
	node = w.m.withoutPlugged(node)
	if v = Admit(p, others, node, w.m.Host.Allocatable); v == nil {
		return nil, false
	}
	if Admit(p, others, node, nil) != nil { // room alone would not help
		return v, false
	}
	waits = w.makeRoom(p, others, extended(w.m.Host.Allocatable, node))
	if !waits && w.m.NoRoom != nil {
		w.m.NoRoom(p)
	}
	return v, waits
}

// withoutPlugged is the Node without resources of device plugins. Who may have those is
// decided where they are allocated, by the devices themselves: the Node may be older.
func (m *Manager) withoutPlugged(node *corev1.Node) *corev1.Node {
	if node == nil || m.HasPlugin == nil {
		return node
	}
	out := node
	for name := range node.Status.Allocatable {
		if !strings.Contains(string(name), "/") || !m.HasPlugin(name) {
			continue
		}
		if out == node {
			out = new(*node)
			out.Status.Allocatable = maps.Clone(node.Status.Allocatable)
		}
		delete(out.Status.Allocatable, name)
	}
	return out
}

// others are the active pods beside p; only older ones when p is new, for they
// have the right of way.
func (m *Manager) others(p *corev1.Pod, older bool) []*corev1.Pod {
	m.mu.Lock()
	workers := m.list()
	m.mu.Unlock()
	var out []*corev1.Pod
	for _, w := range workers {
		w.mu.Lock()
		q := w.pod
		allocated, released := w.shown.allocated, w.shown.released
		at := w.phase
		w.mu.Unlock()
		if q == nil || q.UID == p.UID || at != held && at != wanted || terminal(q) || released {
			continue
		}
		if older && q.CreationTimestamp.After(p.CreationTimestamp.Time) {
			continue
		}
		if allocated != nil {
			q = allocated
		}
		out = append(out, q)
	}
	return out
}
