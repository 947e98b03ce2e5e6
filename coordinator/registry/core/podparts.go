package core

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/shoal-project/shoal/coordinator/registry/podspec"
)

// raiseGeneration counts changes of the spec.
func raiseGeneration(p, old *corev1.Pod) {
	p.Generation = old.Generation
	if !equality.Semantic.DeepEqual(p.Spec, old.Spec) {
		p.Generation++
	}
}

// newEphemeral serves /ephemeralcontainers: debug containers may be added.
func newEphemeral(main *genericregistry.Store) rest.Storage {
	return newPart(main, part[corev1.Pod]{
		keep: func(p, old *corev1.Pod) {
			added := p.Spec.EphemeralContainers
			p.Spec, p.Status = *old.Spec.DeepCopy(), old.Status
			metav1.ResetObjectMetaForStatus(&p.ObjectMeta, &old.ObjectMeta)
			p.Spec.EphemeralContainers = added
			raiseGeneration(p, old)
		},
		validate: validateEphemeralUpdate,
		filter:   everyField,
	})
}

func validateEphemeralUpdate(p, old *corev1.Pod) field.ErrorList {
	if _, mirror := old.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return field.ErrorList{field.Forbidden(field.NewPath(""), "static pods do not support ephemeral containers")}
	}
	errs, at := validatePod(p), field.NewPath("spec", "ephemeralContainers")
	now := map[string]*corev1.EphemeralContainer{}
	for i := range p.Spec.EphemeralContainers {
		now[p.Spec.EphemeralContainers[i].Name] = &p.Spec.EphemeralContainers[i]
	}
	for _, was := range old.Spec.EphemeralContainers {
		switch c := now[was.Name]; {
		case c == nil:
			errs = append(errs,
				field.Forbidden(at, fmt.Sprintf("existing ephemeral containers %q may not be removed\n", was.Name)))
		case !equality.Semantic.DeepEqual(was, *c):
			errs = append(errs,
				field.Forbidden(at,
					fmt.Sprintf("existing ephemeral containers %q may not be changed\n%v", was.Name, diff.Diff(was, *c))))
		}
	}
	return errs
}

// everyField: upstream's ephemeralcontainers and resize reset fields of others as they
// write, and still note who has sent them.
var everyField = fieldpath.NewExcludeSetFilter(fieldpath.NewSet())

// newResize serves /resize: cpu and memory of running containers (KEP-1287).
func newResize(main *genericregistry.Store) rest.Storage {
	return newPart(main, part[corev1.Pod]{
		keep:     keepResize,
		validate: validateResize,
		filter:   everyField,
	})
}

func keepResize(p, old *corev1.Pod) {
	if len(p.Spec.Containers) != len(old.Spec.Containers) || len(p.Spec.InitContainers) != len(old.Spec.InitContainers) {
		return // validation refuses
	}
	wanted := p.Spec
	p.Spec, p.Status = *old.Spec.DeepCopy(), old.Status
	metav1.ResetObjectMetaForStatus(&p.ObjectMeta, &old.ObjectMeta)
	p.Spec.Resources = wanted.Resources
	p.Spec.Containers = takeResources(wanted.Containers, p.Spec.Containers)
	p.Spec.InitContainers = takeResources(wanted.InitContainers, p.Spec.InitContainers)
	raiseGeneration(p, old)
}

// takeResources puts wanted resources into kept containers; containers that
// were renamed are left for validation to refuse.
func takeResources(wanted, kept []corev1.Container) []corev1.Container {
	for i := range wanted {
		if wanted[i].Name != kept[i].Name {
			return wanted
		}
		kept[i].Resources, kept[i].ResizePolicy = wanted[i].Resources, wanted[i].ResizePolicy
	}
	return kept
}

func validateResize(p, old *corev1.Pod) field.ErrorList {
	at := field.NewPath("spec")
	if _, mirror := old.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return field.ErrorList{field.Forbidden(field.NewPath(""), "static pods cannot be resized")}
	}
	if old.Spec.OS != nil && old.Spec.OS.Name == corev1.Windows {
		return field.ErrorList{field.Forbidden(field.NewPath(""), "windows pods cannot be resized")}
	}
	errs := validatePod(p)
	class := old.Status.QOSClass
	if class == "" {
		class = podspec.QOS(&old.Spec)
	}
	if class != podspec.QOS(&p.Spec) {
		errs = append(errs, field.Invalid(at, p.Status.QOSClass, "Pod QOS Class may not change as a result of resizing"))
	}
	if !canResize(old) {
		errs = append(errs, field.Forbidden(at, "Pod running on node without support for resize"))
	}
	if other := validateSameContainers(p, old, at); len(other) > 0 {
		return append(errs, other...)
	}
	munged := p.Spec.DeepCopy()
	errs = append(errs, validatePodResize(munged, &old.Spec, at.Child("resources"))...)
	for i := range munged.InitContainers {
		errs = append(errs, validateResized(&munged.InitContainers[i], &old.Spec.InitContainers[i],
			at.Child("initContainers").Index(i).Child("resources"))...)
	}
	for i := range munged.Containers {
		errs = append(errs, validateResized(&munged.Containers[i], &old.Spec.Containers[i],
			at.Child("containers").Index(i).Child("resources"))...)
	}
	errs = append(errs, validateOnlyCompute(munged, p, old, at)...)
	if len(errs) == 0 && !equality.Semantic.DeepEqual(*munged, old.Spec) {
		errs = append(errs, field.Forbidden(at, "only cpu and memory resources are mutable"))
	}
	return errs
}

// validateOnlyCompute compares containers whose compute resources are the old ones
// in munged: nothing else of them may change.
func validateOnlyCompute(munged *corev1.PodSpec, p, old *corev1.Pod, at *field.Path) (errs field.ErrorList) {
	for i := range munged.Containers {
		if !equality.Semantic.DeepEqual(munged.Containers[i], old.Spec.Containers[i]) {
			errs = append(errs, field.Forbidden(at, "only cpu and memory resources are mutable"))
		}
	}
	for i := range munged.InitContainers {
		each, was := at.Child("initContainers").Index(i), &old.Spec.InitContainers[i]
		if !equality.Semantic.DeepEqual(munged.InitContainers[i], *was) {
			errs = append(errs, field.Forbidden(each,
				"only cpu and memory resources for init or sidecar containers are mutable"))
		}
		errs = append(errs, validateResizedInit(&p.Spec.InitContainers[i], was, each)...)
	}
	return errs
}

// canResize: a running container shows its resources where the agent resizes.
func canResize(p *corev1.Pod) bool {
	for i := range p.Status.ContainerStatuses {
		if p.Status.ContainerStatuses[i].State.Running != nil {
			return p.Status.ContainerStatuses[i].Resources != nil
		}
	}
	return true
}

func validateSameContainers(p, old *corev1.Pod, at *field.Path) (errs field.ErrorList) {
	for _, l := range []struct {
		name     string
		now, was []corev1.Container
	}{{"containers", p.Spec.Containers, old.Spec.Containers},
		{"initContainers", p.Spec.InitContainers, old.Spec.InitContainers}} {
		if len(l.now) != len(l.was) {
			errs = append(errs, field.Forbidden(at.Child(l.name), l.name+" may not be added or removed on resize"))
			continue
		}
		for i := range l.was {
			if l.now[i].Name != l.was[i].Name {
				errs = append(errs, field.Forbidden(at.Child(l.name).Index(i).Child("name"), l.name+" may not be renamed or reordered on resize"))
			}
		}
	}
	return errs
}

// validateResized checks one container and resets what it may change.
func validateResized(c, old *corev1.Container, p *field.Path) (errs field.ErrorList) {
	if lost(c.Resources.Requests, old.Resources.Requests) {
		errs = append(errs, field.Forbidden(p.Child("requests"), "resource requests cannot be removed"))
	}
	if lost(c.Resources.Limits, old.Resources.Limits) {
		errs = append(errs, field.Forbidden(p.Child("limits"), "resource limits cannot be removed"))
	}
	c.Resources.Requests = resetCompute(c.Resources.Requests, old.Resources.Requests)
	c.Resources.Limits = resetCompute(c.Resources.Limits, old.Resources.Limits)
	return errs
}

// validateResizedInit refuses what would restart an init container that ends.
func validateResizedInit(c, old *corev1.Container, p *field.Path) (errs field.ErrorList) {
	sidecar := c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
	if sidecar || equality.Semantic.DeepEqual(c, old) {
		return nil
	}
	for _, r := range c.ResizePolicy {
		if r.RestartPolicy == corev1.RestartContainer {
			errs = append(errs, field.Forbidden(p,
				"non-sidecar init containers with a resize policy of RestartContainer cannot be resized"))
		}
	}
	return errs
}

func validatePodResize(munged, old *corev1.PodSpec, p *field.Path) (errs field.ErrorList) {
	switch {
	case old.Resources == nil && munged.Resources == nil:
		return nil
	case munged.Resources == nil:
		return field.ErrorList{field.Forbidden(p, "pod-level resources cannot be removed")}
	}
	was := &corev1.ResourceRequirements{}
	if old.Resources != nil {
		was = old.Resources
	}
	if lost(munged.Resources.Requests, was.Requests) {
		errs = append(errs, field.Forbidden(p.Child("requests"), "pod-level resource requests cannot be removed"))
	}
	if lost(munged.Resources.Limits, was.Limits) {
		errs = append(errs, field.Forbidden(p.Child("limits"), "pod-level resource limits cannot be removed"))
	}
	r := munged.Resources
	r.Requests, r.Limits = resetCompute(r.Requests, was.Requests), resetCompute(r.Limits, was.Limits)
	if old.Resources == nil && len(r.Requests)+len(r.Limits)+len(r.Claims) == 0 {
		munged.Resources = nil
	}
	if !equality.Semantic.DeepEqual(munged.Resources, old.Resources) {
		errs = append(errs, field.Forbidden(field.NewPath("spec"), "only cpu and memory resources are mutable at pod-level"))
	}
	return errs
}

func lost(now, was corev1.ResourceList) bool {
	for name := range was {
		if _, ok := now[name]; !ok {
			return true
		}
	}
	return false
}

// resetCompute returns now with the cpu and memory of was.
func resetCompute(now, was corev1.ResourceList) corev1.ResourceList {
	out := now.DeepCopy()
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		delete(out, name)
		if q, ok := was[name]; ok {
			if out == nil {
				out = corev1.ResourceList{}
			}
			out[name] = q
		}
	}
	if len(out) == 0 && was == nil {
		return nil
	}
	return out
}
