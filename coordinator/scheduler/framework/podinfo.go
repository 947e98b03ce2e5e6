package framework

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Requests that a container without any counts for when least allocated nodes
// are looked for, so that such pods spread, too (upstream's figures).
const (
	DefaultMilliCPU int64 = 100
	DefaultMemory   int64 = 200 * 1024 * 1024
)

// PodInfo is a pod with what scheduling needs of it, computed once. It is never
// changed after NewPodInfo.
type PodInfo struct {
	Pod      *corev1.Pod
	Priority int32
	// Requests counts init containers, sidecars, overhead and pod-level resources.
	Requests Resources
	// NonZero is Requests with defaults for containers that request nothing.
	NonZero   Resources
	HostPorts []HostPort

	RequiredAffinity, RequiredAntiAffinity   []AffinityTerm
	PreferredAffinity, PreferredAntiAffinity []AffinityTerm
}

// HostPort is a port that a pod takes on its node.
type HostPort struct {
	IP       string // 0.0.0.0 for all addresses
	Protocol corev1.Protocol
	Port     int32
}

// QueuedPod is a pod on its way through the scheduling queue.
type QueuedPod struct {
	*PodInfo
	Timestamp time.Time // when it last entered a queue
	Initial   time.Time // when it was first ready to be tried; zero before
	Attempts  int
	// UnschedulableCount and ConsecutiveErrors set the back-off.
	UnschedulableCount int
	ConsecutiveErrors  int
	// RejectedBy are the plugins that refused it last, PendingOn those of them
	// that said Pending.
	RejectedBy, PendingOn sets.Set[string]
	// GatedBy is the PreEnqueue plugin that holds it.
	GatedBy string
}

// AffinityTerm is a parsed pod (anti-)affinity term. Weight is 0 for a required one.
type AffinityTerm struct {
	Namespaces        sets.Set[string]
	NamespaceSelector labels.Selector
	Selector          labels.Selector
	TopologyKey       string
	Weight            int32
}

// Matches reports whether the term selects a pod with these labels in a namespace with those.
func (t *AffinityTerm) Matches(pod *corev1.Pod, nsLabels labels.Set) bool {
	if !t.Namespaces.Has(pod.Namespace) && !t.NamespaceSelector.Matches(nsLabels) {
		return false
	}
	return t.Selector.Matches(labels.Set(pod.Labels))
}

// NewPodInfo reads a pod. The error tells of selectors that cannot be parsed;
// the rest of the PodInfo is usable even then.
func NewPodInfo(pod *corev1.Pod) (*PodInfo, error) {
	p := &PodInfo{Pod: pod, HostPorts: hostPorts(pod)}
	if pod.Spec.Priority != nil {
		p.Priority = *pod.Spec.Priority
	}
	p.setRequests()
	return p, p.setTerms()
}

// UID returns the pod's UID.
func (p *PodInfo) UID() types.UID { return p.Pod.UID }

// HasAffinity reports any inter-pod term.
func (p *PodInfo) HasAffinity() bool {
	return len(p.RequiredAffinity)+len(p.RequiredAntiAffinity)+len(p.PreferredAffinity)+len(p.PreferredAntiAffinity) > 0
}

var nonMissing = corev1.ResourceList{
	corev1.ResourceCPU:    *resource.NewMilliQuantity(DefaultMilliCPU, resource.DecimalSI),
	corev1.ResourceMemory: *resource.NewQuantity(DefaultMemory, resource.DecimalSI),
}

func (p *PodInfo) setRequests() {
	opts := resourcehelper.PodResourcesOptions{
		UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: true}
	p.Requests.Add(resourcehelper.PodRequests(p.Pod, opts))
	opts.NonMissingContainerRequests = nonMissing
	p.NonZero.Add(resourcehelper.PodRequests(p.Pod, opts))
}

func (p *PodInfo) setTerms() (err error) {
	a := p.Pod.Spec.Affinity
	if a == nil {
		return nil
	}
	keep := func(terms []AffinityTerm, e error) []AffinityTerm {
		if e != nil && err == nil {
			err = e
		}
		return terms
	}
	if pa := a.PodAffinity; pa != nil {
		p.RequiredAffinity = keep(requiredTerms(p.Pod, pa.RequiredDuringSchedulingIgnoredDuringExecution))
		p.PreferredAffinity = keep(preferredTerms(p.Pod, pa.PreferredDuringSchedulingIgnoredDuringExecution))
	}
	if pa := a.PodAntiAffinity; pa != nil {
		p.RequiredAntiAffinity = keep(requiredTerms(p.Pod, pa.RequiredDuringSchedulingIgnoredDuringExecution))
		p.PreferredAntiAffinity = keep(preferredTerms(p.Pod, pa.PreferredDuringSchedulingIgnoredDuringExecution))
	}
	return err
}

func requiredTerms(pod *corev1.Pod, in []corev1.PodAffinityTerm) ([]AffinityTerm, error) {
	var out []AffinityTerm
	for i := range in {
		t, err := newTerm(pod, &in[i])
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

func preferredTerms(pod *corev1.Pod, in []corev1.WeightedPodAffinityTerm) ([]AffinityTerm, error) {
	var out []AffinityTerm
	for i := range in {
		t, err := newTerm(pod, &in[i].PodAffinityTerm)
		if err != nil {
			return nil, err
		}
		t.Weight = in[i].Weight
		out = append(out, t)
	}
	return out, nil
}

// newTerm parses a term. matchLabelKeys and mismatchLabelKeys are merged into
// the selector by the API server when the pod is created.
func newTerm(pod *corev1.Pod, in *corev1.PodAffinityTerm) (AffinityTerm, error) {
	sel, err := metav1.LabelSelectorAsSelector(in.LabelSelector)
	if err != nil {
		return AffinityTerm{}, fmt.Errorf("pod affinity labelSelector: %w", err)
	}
	nsSel, err := metav1.LabelSelectorAsSelector(in.NamespaceSelector)
	if err != nil {
		return AffinityTerm{}, fmt.Errorf("pod affinity namespaceSelector: %w", err)
	}
	ns := sets.New(in.Namespaces...)
	if len(in.Namespaces) == 0 && in.NamespaceSelector == nil {
		ns.Insert(pod.Namespace)
	}
	return AffinityTerm{Namespaces: ns, NamespaceSelector: nsSel, Selector: sel, TopologyKey: in.TopologyKey}, nil
}

func hostPorts(pod *corev1.Pod) []HostPort {
	var out []HostPort
	add := func(c *corev1.Container) {
		for _, p := range c.Ports {
			if p.HostPort <= 0 {
				continue
			}
			h := HostPort{IP: p.HostIP, Protocol: p.Protocol, Port: p.HostPort}
			if h.IP == "" {
				h.IP = "0.0.0.0"
			}
			if h.Protocol == "" {
				h.Protocol = corev1.ProtocolTCP
			}
			out = append(out, h)
		}
	}
	for i := range pod.Spec.InitContainers {
		// A sidecar runs as long as the pod; other init containers' ports are
		// free again before the pod runs.
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return out
}
