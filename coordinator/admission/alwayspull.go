package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"

	"github.com/shoal-project/shoal/coordinator/registry/podspec"
)

// alwaysPullImages has each container's image pulled anew, so that a pod uses no
// private image that only another pod's credentials brought to the node. Unlike
// upstream's it covers ephemeral containers too.
type alwaysPullImages struct{ *admission.Handler }

func newAlwaysPullImages() alwaysPullImages {
	return alwaysPullImages{admission.NewHandler(admission.Create, admission.Update)}
}

// Admit sets the policy of a new pod, and of containers that join a pod.
func (alwaysPullImages) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, old := podAndOld(a)
	if pod == nil {
		return nil
	}
	had := sets.New[string]()
	if old != nil {
		podspec.Visit(&old.Spec, nil, func(c *corev1.Container, _ *field.Path) { had.Insert(c.Name) })
	}
	podspec.Visit(&pod.Spec, nil, func(c *corev1.Container, _ *field.Path) {
		if !had.Has(c.Name) {
			c.ImagePullPolicy = corev1.PullAlways
		}
	})
	if old == nil {
		for i := range pod.Spec.Volumes {
			if image := pod.Spec.Volumes[i].Image; image != nil {
				image.PullPolicy = corev1.PullAlways
			}
		}
	}
	return nil
}

// Validate refuses what a later plugin has changed, and images that come into a
// pod whose policy was set before this plugin ran: it cannot change.
func (alwaysPullImages) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, old := podAndOld(a)
	if pod == nil {
		return nil
	}
	had := sets.New[string]()
	if old != nil {
		podspec.Visit(&old.Spec, nil, func(c *corev1.Container, _ *field.Path) { had.Insert(c.Image) })
	}
	var errs []error
	refuse := func(path *field.Path, policy corev1.PullPolicy) {
		errs = append(errs,
			admission.NewForbidden(a, field.NotSupported(path, policy, []corev1.PullPolicy{corev1.PullAlways})))
	}
	podspec.Visit(&pod.Spec, field.NewPath("spec"), func(c *corev1.Container, p *field.Path) {
		if !had.Has(c.Image) && c.ImagePullPolicy != corev1.PullAlways {
			refuse(p.Child("imagePullPolicy"), c.ImagePullPolicy)
		}
	})
	for i := range pod.Spec.Volumes {
		if image := pod.Spec.Volumes[i].Image; old == nil && image != nil && image.PullPolicy != corev1.PullAlways {
			refuse(field.NewPath("spec", "volumes").Index(i).Child("image", "pullPolicy"), image.PullPolicy)
		}
	}
	return utilerrors.NewAggregate(errs)
}

// podAndOld returns the pod of a request that may bring images, nil for any
// other, and the stored one when it is a change.
func podAndOld(a admission.Attributes) (pod, old *corev1.Pod) {
	if a.GetResource().GroupResource() != corev1.Resource("pods") || a.GetSubresource() != "" && a.GetSubresource() != "ephemeralcontainers" {
		return nil, nil
	}
	pod, _ = a.GetObject().(*corev1.Pod)
	if a.GetOperation() == admission.Update {
		old, _ = a.GetOldObject().(*corev1.Pod)
	}
	return pod, old
}
