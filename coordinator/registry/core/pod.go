package core

import (
	"context"
	"fmt"
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/shoal-project/shoal/coordinator/registry/connect"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/registry/podspec"
)

func pod() kind.Kind {
	return kind.Of[corev1.Pod]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "pods", Singular: "pod",
			ShortNames: []string{"po"}, Categories: []string{"all"}, List: &corev1.PodList{},
		},
		Default: defaultPod,
		Create: func(ctx context.Context, p *corev1.Pod) {
			createPod(p)
			for _, w := range podspec.AdoptAppArmor(p) {
				warning.AddWarning(ctx, "", w) // before the warnings that follow validation, as the profile is set
			}
		},
		Validate:       func(_ context.Context, p *corev1.Pod) field.ErrorList { return validatePodCreate(p) },
		ValidateUpdate: func(_ context.Context, p, old *corev1.Pod) field.ErrorList { return validatePodUpdate(p, old) },
		Warnings:       podWarnings,
		Spec:           func(p *corev1.Pod) any { return &p.Spec },
		Status: &kind.StatusOf[corev1.Pod]{
			Copy:     func(to, from *corev1.Pod) { to.Status = from.Status },
			Update:   updatePodStatus,
			Warnings: podStatusWarnings,
			Meta: func(p, old metav1.Object) {
				p.SetDeletionTimestamp(nil) // the registry restores it
				p.SetOwnerReferences(old.GetOwnerReferences())
			},
			Validate: func(_ context.Context, p, old *corev1.Pod) field.ErrorList { return validatePodStatus(p, old) },
			ResetFields: fieldpath.NewSet(
				fieldpath.MakePathOrDie("metadata", "deletionTimestamp"), fieldpath.MakePathOrDie("metadata", "ownerReferences")),
		},
		Fields:        podFields,
		RenamedFields: map[string]string{"spec.host": "spec.nodeName"},
		Indexed:       []string{"spec.nodeName"},
		Columns:       podColumns(),
		Row:           podRow,
		RowConditions: podRowConditions,
		Graceful:      gracePod,
		Main:          connect.PodReader,
		Subresources: func(env *kind.Env, stores kind.Stores) map[string]rest.Storage {
			store := stores["/pods"]
			out := map[string]rest.Storage{
				"binding":             &bindingREST{store: store},
				"eviction":            newEviction(env, store),
				"ephemeralcontainers": newEphemeral(store),
				"resize":              newResize(store),
			}
			maps.Copy(out, connect.Pod(env, stores))
			return out
		},
	}.Kind()
}

func defaultPod(p *corev1.Pod) {
	podspec.DefaultPod(p)
	defaultStatusResources(&p.Status)
	// podIP and hostIP are the first of podIPs and hostIPs; older agents write
	// only the singular.
	s := &p.Status
	switch {
	case s.PodIP == "" && len(s.PodIPs) > 0:
		s.PodIP = s.PodIPs[0].IP
	case s.PodIP != "" && (len(s.PodIPs) == 0 || s.PodIPs[0].IP != s.PodIP):
		s.PodIPs = []corev1.PodIP{{IP: s.PodIP}}
	}
}

// defaultStatusResources rounds what agents report, as all resources are.
func defaultStatusResources(s *corev1.PodStatus) {
	lists := []corev1.ResourceList{s.AllocatedResources}
	if s.Resources != nil {
		lists = append(lists, s.Resources.Limits, s.Resources.Requests)
	}
	for _, list := range [][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses,
		s.EphemeralContainerStatuses} {
		for i := range list {
			lists = append(lists, list[i].AllocatedResources)
			if r := list[i].Resources; r != nil {
				lists = append(lists, r.Limits, r.Requests)
			}
		}
	}
	for _, list := range lists {
		podspec.RoundResources(list)
	}
}

func createPod(p *corev1.Pod) {
	p.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: podspec.QOS(&p.Spec)}
	if len(p.Spec.SchedulingGates) > 0 {
		setCondition(&p.Status, corev1.PodCondition{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulingGated,
			Message: "Scheduling is blocked due to non-empty scheduling gates",
		})
	}
	mergeLabelKeys(p)
}

// setCondition sets a condition; its transition time changes with its status.
func setCondition(s *corev1.PodStatus, c corev1.PodCondition) {
	c.LastTransitionTime = metav1.Now()
	for i := range s.Conditions {
		old := &s.Conditions[i]
		if old.Type != c.Type {
			continue
		}
		if old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		*old = c
		return
	}
	s.Conditions = append(s.Conditions, c)
}

// mergeLabelKeys turns matchLabelKeys and mismatchLabelKeys into expressions
// with the pod's own values (KEP-3633, KEP-3243).
func mergeLabelKeys(p *corev1.Pod) {
	merge := func(s *metav1.LabelSelector, keys []string, op metav1.LabelSelectorOperator) {
		if s == nil {
			return
		}
		for _, key := range keys {
			if value, ok := p.Labels[key]; ok {
				s.MatchExpressions = append(s.MatchExpressions,
					metav1.LabelSelectorRequirement{Key: key, Operator: op, Values: []string{value}})
			}
		}
	}
	term := func(t *corev1.PodAffinityTerm) {
		merge(t.LabelSelector, t.MatchLabelKeys, metav1.LabelSelectorOpIn)
		merge(t.LabelSelector, t.MismatchLabelKeys, metav1.LabelSelectorOpNotIn)
	}
	terms := func(preferred []corev1.WeightedPodAffinityTerm, required []corev1.PodAffinityTerm) {
		for i := range preferred {
			term(&preferred[i].PodAffinityTerm)
		}
		for i := range required {
			term(&required[i])
		}
	}
	if a := p.Spec.Affinity; a != nil && a.PodAffinity != nil {
		terms(a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution,
			a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
	}
	if a := p.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		terms(a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution,
			a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
	}
	for i := range p.Spec.TopologySpreadConstraints {
		c := &p.Spec.TopologySpreadConstraints[i]
		merge(c.LabelSelector, c.MatchLabelKeys, metav1.LabelSelectorOpIn)
	}
}

func podWarnings(_ context.Context, p, old *corev1.Pod) []string {
	if old != nil {
		return nil
	}
	var out []string
	if msgs := validation.IsDNS1123Label(p.Name); len(msgs) > 0 {
		out = append(out,
			fmt.Sprintf(
				"metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: %v",
				msgs))
	}
	return append(out, podspec.Warnings(&p.ObjectMeta, &p.Spec, nil)...)
}

func podStatusWarnings(p *corev1.Pod) (out []string) {
	at := field.NewPath("status")
	for i, ip := range p.Status.PodIPs {
		out = append(out, validation.GetWarningsForIP(at.Child("podIPs").Index(i).Child("ip"), ip.IP)...)
	}
	for i, ip := range p.Status.HostIPs {
		out = append(out, validation.GetWarningsForIP(at.Child("hostIPs").Index(i).Child("ip"), ip.IP)...)
	}
	return out
}

func podFields(p *corev1.Pod) fields.Set {
	ip := p.Status.PodIP
	if len(p.Status.PodIPs) > 0 {
		ip = p.Status.PodIPs[0].IP
	}
	return fields.Set{
		"spec.nodeName":            p.Spec.NodeName,
		"spec.restartPolicy":       string(p.Spec.RestartPolicy),
		"spec.schedulerName":       p.Spec.SchedulerName,
		"spec.serviceAccountName":  p.Spec.ServiceAccountName,
		"spec.hostNetwork":         strconv.FormatBool(p.Spec.HostNetwork),
		"status.phase":             string(p.Status.Phase),
		"status.podIP":             ip,
		"status.podIPs":            ip,
		"status.nominatedNodeName": p.Status.NominatedNodeName,
	}
}

// gracePod computes how long a deleted pod stays: as asked, else as its spec
// says; a pod that runs nowhere or has ended goes at once.
func gracePod(_ context.Context, p *corev1.Pod, options *metav1.DeleteOptions) bool {
	if options == nil {
		return false
	}
	period := deref(p.Spec.TerminationGracePeriodSeconds)
	if options.GracePeriodSeconds != nil {
		period = *options.GracePeriodSeconds
	}
	if p.Spec.NodeName == "" || p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded {
		period = 0
	}
	if period < 0 {
		period = 1
	}
	options.GracePeriodSeconds = &period
	return true
}

// updatePodStatus keeps what /status may not change.
func updatePodStatus(_ context.Context, p, old *corev1.Pod) {
	s, was := &p.Status, &old.Status
	if s.QOSClass == "" {
		s.QOSClass = was.QOSClass
	}
	if s.ObservedGeneration == 0 {
		s.ObservedGeneration = was.ObservedGeneration
	}
	for i := range s.Conditions {
		if s.Conditions[i].ObservedGeneration != 0 {
			continue
		}
		for _, c := range was.Conditions {
			if c.Type == s.Conditions[i].Type {
				s.Conditions[i].ObservedGeneration = c.ObservedGeneration
				break
			}
		}
	}
}
