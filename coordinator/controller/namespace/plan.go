package namespace

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// outcome is what one pass over a namespace's content came to.
type outcome struct {
	discovery  error
	groups     error
	content    []error
	remaining  map[schema.GroupVersionResource]int
	finalizers map[string]int
	// partly: only pods were deleted yet, so the rest is not known.
	partly bool
}

// done tells whether the namespace may go.
func (o *outcome) done() bool {
	return o.discovery == nil && o.groups == nil && len(o.content) == 0 && len(o.remaining) == 0 && !o.partly
}

func (o *outcome) err() error { return errors.Join(append(o.content, o.discovery, o.groups)...) }

// conditions merges the outcome into a namespace's conditions, in upstream's
// words, and tells whether that changed them.
func conditions(have []corev1.NamespaceCondition, o *outcome, now time.Time) ([]corev1.NamespaceCondition, bool) {
	out, changed := slices.Clone(have), false
	for _, c := range o.told() {
		c.LastTransitionTime = metav1.NewTime(now)
		i := slices.IndexFunc(out, func(h corev1.NamespaceCondition) bool { return h.Type == c.Type })
		switch {
		case i < 0:
			out = append(out, c)
		case out[i].Status == c.Status && out[i].Reason == c.Reason && out[i].Message == c.Message:
			continue
		default:
			if out[i].Status == c.Status {
				c.LastTransitionTime = out[i].LastTransitionTime
			}
			out[i] = c
		}
		changed = true
	}
	return out, changed
}

func (o *outcome) told() []corev1.NamespaceCondition {
	discovered := condition(corev1.NamespaceDeletionDiscoveryFailure, "ResourcesDiscovered", "All resources successfully discovered")
	if o.discovery != nil {
		msg := o.discovery.Error()
		var failed *discovery.ErrGroupDiscoveryFailed
		if errors.As(o.discovery, &failed) {
			msg = fmt.Sprintf("Discovery failed for some groups, %d failing: %v", len(failed.Groups), o.discovery)
		}
		discovered = problem(discovered, "DiscoveryFailed", msg)
	}
	parsed := condition(corev1.NamespaceDeletionGVParsingFailure, "ParsedGroupVersions", "All legacy kube types successfully parsed")
	if o.groups != nil {
		parsed = problem(parsed, "GroupVersionParsingFailed", o.groups.Error())
	}
	deleted := condition(corev1.NamespaceDeletionContentFailure, "ContentDeleted", "All content successfully deleted, may be waiting on finalization")
	if len(o.content) > 0 {
		msgs := make([]string, len(o.content))
		for i, err := range o.content {
			msgs[i] = err.Error()
		}
		slices.Sort(msgs)
		deleted = problem(deleted,
			"ContentDeletionFailed",
			fmt.Sprintf("Failed to delete all resource types, %d remaining: %v", len(msgs), strings.Join(msgs, ", ")))
	}
	return []corev1.NamespaceCondition{discovered, parsed, deleted, o.contentLeft(), o.finalizersLeft()}
}

func (o *outcome) contentLeft() corev1.NamespaceCondition {
	c := condition(corev1.NamespaceContentRemaining, "ContentRemoved", "All content successfully removed")
	if len(o.remaining) == 0 {
		return c
	}
	var left []string
	for gvr, n := range o.remaining {
		left = append(left, fmt.Sprintf("%s.%s has %d resource instances", gvr.Resource, gvr.Group, n))
	}
	slices.Sort(left)
	return problem(c, "SomeResourcesRemain", "Some resources are remaining: "+strings.Join(left, ", "))
}

func (o *outcome) finalizersLeft() corev1.NamespaceCondition {
	c := condition(corev1.NamespaceFinalizersRemaining, "ContentHasNoFinalizers", "All content-preserving finalizers finished")
	if len(o.finalizers) == 0 {
		return c
	}
	var left []string
	for _, f := range slices.Sorted(maps.Keys(o.finalizers)) {
		left = append(left, fmt.Sprintf("%s in %d resource instances", f, o.finalizers[f]))
	}
	return problem(c, "SomeFinalizersRemain",
		"Some content in the namespace has finalizers remaining: "+strings.Join(left, ", "))
}

func condition(t corev1.NamespaceConditionType, reason, message string) corev1.NamespaceCondition {
	return corev1.NamespaceCondition{Type: t, Status: corev1.ConditionFalse, Reason: reason, Message: message}
}

func problem(c corev1.NamespaceCondition, reason, message string) corev1.NamespaceCondition {
	c.Status, c.Reason, c.Message = corev1.ConditionTrue, reason, message
	return c
}
