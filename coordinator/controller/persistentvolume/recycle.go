package persistentvolume

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// A volume of the policy Recycle is emptied by a pod, and free again then (PV-20,
// PV-22). Its name is upstream's; whatever else has the name goes, since nobody knows
// what it did.
const recyclerPrefix = "recycler-for-"

const (
	// What fails is tried again after a while, ever longer.
	firstRecycleRetry = 30 * time.Second
	lastRecycleRetry  = 10 * time.Minute
	// stillUsed is how soon pods are looked at again that outlived their claim.
	stillUsed = 10 * time.Second
	// nameTaken is how soon a pod with the recycler's name is looked at that was deleted.
	nameTaken = 5 * time.Second
)

// recycling is how far the emptying of a volume came.
type recycling struct {
	// pod is the UID of the pod that is at work, "" for none.
	pod types.UID
	// namespace is that of the pod.
	namespace string
	// done: the volume is empty.
	done  bool
	fails int
	// until is when to try again what failed.
	until time.Time
}

// recyclable is what a recycler's pod mounts, nil for a volume that cannot be emptied so.
func recyclable(pv *corev1.PersistentVolume) *corev1.VolumeSource {
	switch s := &pv.Spec.PersistentVolumeSource; {
	case s.HostPath != nil:
		return &corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: s.HostPath.Path}}
	case s.NFS != nil:
		nfs := &corev1.NFSVolumeSource{Server: s.NFS.Server, Path: s.NFS.Path}
		return &corev1.VolumeSource{NFS: nfs}
	}
	return nil
}

// recycle takes the emptying of a volume that has no claim any more one step further.
func (r *reconciler) recycle(ctx context.Context, pv *corev1.PersistentVolume) (time.Duration, error) {
	state := r.recyclings.of(pv.Name)
	if wait := time.Until(state.until); wait > 0 {
		return wait, nil
	}
	// The cache may show the volume as it was before it was emptied; by now it may have
	// another claim's data.
	pv, err := r.stillReleased(ctx, pv)
	if pv == nil || err != nil {
		return 0, err
	}
	switch {
	case state.done:
		return 0, r.emptied(ctx, pv)
	case state.pod != "":
		return r.recycled(ctx, pv, state)
	}
	if users := r.users(pv); len(users) > 0 {
		r.events.Event(pv, corev1.EventTypeNormal, "VolumeFailedRecycle",
			"Volume is used by pods: "+strings.Join(users, ","))
		state.until = time.Now().Add(stillUsed)
		return stillUsed, nil
	}
	pod := r.recyclers.pod(pv)
	state.namespace = pod.Namespace
	pod, err = r.client.CoreV1().Pods(state.namespace).Create(ctx, pod, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		state.until = time.Now().Add(nameTaken)
		return nameTaken, r.endRecycler(ctx, state.namespace, pv.Name, "")
	case err != nil:
		return r.notRecycled(ctx, pv, state, fmt.Sprintf("unexpected error creating recycler pod:  %v", err))
	}
	r.recyclings.set(state, pod.UID)
	return 0, nil
}

// stillReleased is the volume as the API has it, nil where it is not to be emptied.
func (r *reconciler) stillReleased(ctx context.Context, pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	now, err := r.client.CoreV1().PersistentVolumes().Get(ctx, pv.Name, metav1.GetOptions{})
	if err != nil {
		return nil, controller.IgnoreGone(err)
	}
	if now.UID != pv.UID || now.DeletionTimestamp != nil || recyclable(now) == nil ||
		now.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRecycle ||
		now.Status.Phase != corev1.VolumeReleased && now.Status.Phase != corev1.VolumeFailed ||
		now.Spec.ClaimRef == nil || now.Spec.ClaimRef.UID != pv.Spec.ClaimRef.UID {
		return nil, nil
	}
	return now, nil
}

// users are the pods that use the volume by a claim that is gone.
func (r *reconciler) users(pv *corev1.PersistentVolume) (names []string) {
	ref := pv.Spec.ClaimRef
	if _, err := r.claims.PersistentVolumeClaims(ref.Namespace).Get(ref.Name); err == nil {
		return nil // theirs is a new claim of the name, and so another volume
	}
	list, err := r.pods.ByIndex(byClaim, controller.Key(ref.Namespace, ref.Name))
	if err != nil {
		return nil // the index is there
	}
	for _, obj := range list {
		if p, ok := obj.(*corev1.Pod); ok && !controller.PodTerminal(p) {
			names = append(names, p.Namespace+"/"+p.Name)
		}
	}
	slices.Sort(names)
	return names
}

// recycled looks at what became of the pod.
func (r *reconciler) recycled(ctx context.Context, pv *corev1.PersistentVolume,
	state *recycling) (time.Duration, error) {
	pod, err := r.client.CoreV1().Pods(state.namespace).Get(ctx, recyclerPrefix+pv.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, err
	}
	switch {
	case err != nil || pod.UID != state.pod:
		return r.notRecycled(ctx, pv, state, "failed to recycle volume: recycler pod was deleted")
	case pod.Status.Phase == corev1.PodSucceeded:
	case pod.Status.Phase == corev1.PodFailed:
		why := pod.Status.Message
		if why == "" {
			why = "pod failed, pod.Status.Message unknown"
		}
		if err := r.endRecycler(ctx, state.namespace, pv.Name, r.recyclings.set(state, "")); err != nil {
			return 0, err
		}
		return r.notRecycled(ctx, pv, state, "failed to recycle volume: "+why)
	default:
		return 0, nil // its events wake the volume
	}
	state.done = true
	if err := r.endRecycler(ctx, state.namespace, pv.Name, r.recyclings.set(state, "")); err != nil {
		return 0, err
	}
	return 0, r.emptied(ctx, pv)
}

// emptied frees a volume.
func (r *reconciler) emptied(ctx context.Context, pv *corev1.PersistentVolume) error {
	if err := r.free(ctx, pv); err != nil {
		return err
	}
	r.events.Event(pv, corev1.EventTypeNormal, "VolumeRecycled", "Volume recycled")
	r.recyclings.forget(pv.Name)
	return nil
}

// notRecycled: the volume is Failed, until it is tried again.
func (r *reconciler) notRecycled(ctx context.Context, pv *corev1.PersistentVolume, state *recycling,
	why string) (time.Duration, error) {
	wait := min(firstRecycleRetry<<min(state.fails, 10), lastRecycleRetry)
	r.recyclings.set(state, "")
	state.fails, state.until = state.fails+1, time.Now().Add(wait)
	why = "Recycle failed: " + why
	r.events.Event(pv, corev1.EventTypeWarning, "VolumeFailedRecycle", why)
	return wait, r.setVolume(ctx, pv, corev1.VolumeFailed, why)
}

// endRecycler deletes the pod of a volume's recycler, whatever it is where uid is "".
func (r *reconciler) endRecycler(ctx context.Context, namespace, volume string, uid types.UID) error {
	var only *metav1.Preconditions
	if uid != "" {
		only = metav1.NewUIDPreconditions(string(uid))
	}
	err := r.client.CoreV1().Pods(namespace).Delete(ctx, recyclerPrefix+volume,
		metav1.DeleteOptions{Preconditions: only})
	if apierrors.IsConflict(err) {
		return nil // another of the name
	}
	return controller.IgnoreGone(err)
}

// dropRecycling ends what was begun for a volume that is not to be emptied any more.
func (r *reconciler) dropRecycling(ctx context.Context, volume string) error {
	if state := r.recyclings.forget(volume); state.pod != "" {
		return r.endRecycler(ctx, state.namespace, volume, state.pod)
	}
	return nil
}

// recyclings are the volumes that are being emptied, by name. The worker that has one
// changes it, those who hear of pods read it.
type recyclings struct {
	mu   sync.Mutex
	list map[string]*recycling
}

func (l *recyclings) of(volume string) *recycling {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.list[volume] == nil {
		l.list[volume] = &recycling{}
	}
	return l.list[volume]
}

// set notes the pod that is at work, and returns the one before.
func (l *recyclings) set(state *recycling, pod types.UID) (was types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was, state.pod = state.pod, pod
	return was
}

// forget drops a volume, and returns how far it came.
func (l *recyclings) forget(volume string) (state recycling) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.list[volume]; s != nil {
		state = *s
	}
	delete(l.list, volume)
	return state
}

// volume is the one that the pod is at work for, "" for none.
func (l *recyclings) volume(pod *corev1.Pod) string {
	name, ok := strings.CutPrefix(pod.Name, recyclerPrefix)
	if !ok {
		return ""
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if state := l.list[name]; state == nil || state.pod != pod.UID {
		return ""
	}
	return name
}
