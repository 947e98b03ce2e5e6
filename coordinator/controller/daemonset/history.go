package daemonset

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/controller"
)

func (r *reconciler) revisions(ctx context.Context, ds *appsv1.DaemonSet) (controller.Revisions, error) {
	return r.history.Sync(ctx, controller.Revised{
		Owner: ds, Template: &ds.Spec.Template, Selector: ds.Spec.Selector,
		Collisions: ds.Status.CollisionCount, Live: r.live(ds),
	})
}

// trim deletes the old revisions beyond revisionHistoryLimit; those that pods
// have stay, and count.
func (r *reconciler) trim(ctx context.Context, v *view, old []*appsv1.ControllerRevision) error {
	hashes := map[string]bool{}
	note := func(pods []*corev1.Pod) {
		for _, p := range pods {
			hashes[p.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]] = true
		}
	}
	note(v.leaving)
	for _, pods := range v.pods {
		note(pods)
	}
	live := func(rev *appsv1.ControllerRevision) bool {
		return hashes[rev.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]]
	}
	limit := int(ptr.Deref(v.ds.Spec.RevisionHistoryLimit, 10))
	for _, rev := range old {
		if live(rev) {
			limit--
		}
	}
	return r.history.Trim(ctx, old, max(limit, 0), live)
}
