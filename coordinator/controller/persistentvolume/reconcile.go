package persistentvolume

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-helpers/storage/ephemeral"
	storagehelper "k8s.io/component-helpers/storage/volume"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// Keys of the loop: volumes and claims have one queue.
const (
	volumeKey = "volume/"
	claimKey  = "claim/"
	byClaim   = "claim" // index of pods
)

// workers is how many claims and volumes are written to at once: a claim is bound by
// four writes, and each waits for the disk.
const workers = 8

type reconciler struct {
	// choosing: volumes are chosen for one claim after the other, so that two are never
	// bound to one volume at once.
	choosing   sync.Mutex
	client     kubernetes.Interface
	volumes    corelisters.PersistentVolumeLister
	claims     corelisters.PersistentVolumeClaimLister
	classes    storagelisters.StorageClassLister
	pods       cache.Indexer
	places     *places
	recyclers  Recyclers
	recyclings recyclings
	events     record.EventRecorder
	loop       *controller.Loop
}

// New builds the controller.
func New(env controller.Env, recyclers Recyclers) (*controller.Loop, error) {
	loop := controller.New("persistentvolume-binder", workers, env.Log)
	core, storage := env.Informers.Core().V1(), env.Informers.Storage().V1()
	if err := controller.Index(core.Pods().Informer(), byClaim, claimsOf); err != nil {
		return nil, err
	}
	r := &reconciler{
		client: env.Client, volumes: core.PersistentVolumes().Lister(), claims: core.PersistentVolumeClaims().Lister(),
		classes: storage.StorageClasses().Lister(), pods: core.Pods().Informer().GetIndexer(),
		events: env.Recorder("persistentvolume-controller"), loop: loop,
		recyclers: recyclers, recyclings: recyclings{list: map[string]*recycling{}},
	}
	loop.Reconciler = r
	var err error
	if r.places, err = newPlaces(env, loop); err != nil {
		return nil, err
	}
	controller.Watch(loop, core.PersistentVolumes().Informer(), r.volumeChanged)
	controller.Watch(loop, core.PersistentVolumeClaims().Informer(), r.claimChanged)
	controller.Watch(loop, storage.StorageClasses().Informer(), r.classChanged)
	controller.Watch(loop, core.Pods().Informer(), r.podChanged)
	return loop, nil
}

// claimsOf indexes pods by the claims that they name, their own included.
func claimsOf(obj any) ([]string, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, nil
	}
	return claimNames(pod), nil
}

func claimNames(pod *corev1.Pod) (keys []string) {
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; v.PersistentVolumeClaim != nil {
			keys = append(keys, controller.Key(pod.Namespace, v.PersistentVolumeClaim.ClaimName))
		} else if v.Ephemeral != nil {
			keys = append(keys, controller.Key(pod.Namespace, ephemeral.VolumeClaimName(pod, v)))
		}
	}
	return keys
}

// volumeChanged has the volume looked at, its claim when it went, and claims
// that wait when it came free.
func (r *reconciler) volumeChanged(old, pv *corev1.PersistentVolume) {
	if pv == nil {
		r.loop.Add(volumeKey + old.Name)
		r.claimsThat(func(c *corev1.PersistentVolumeClaim) bool { return c.Spec.VolumeName != "" })
		return
	}
	r.loop.Add(volumeKey + pv.Name)
	if ref := pv.Spec.ClaimRef; ref != nil {
		r.loop.Add(claimKey + controller.Key(ref.Namespace, ref.Name))
	} else if pv.Status.Phase == corev1.VolumeAvailable {
		r.claimsThat(waiting)
	}
}

func waiting(c *corev1.PersistentVolumeClaim) bool {
	return !metav1.HasAnnotation(c.ObjectMeta, storagehelper.AnnBindCompleted)
}

func (r *reconciler) claimChanged(old, c *corev1.PersistentVolumeClaim) {
	for _, x := range []*corev1.PersistentVolumeClaim{old, c} {
		if x != nil && x.Spec.VolumeName != "" {
			r.loop.Add(volumeKey + x.Spec.VolumeName)
		}
	}
	if c != nil {
		r.loop.Add(claimKey + controller.Key(c.Namespace, c.Name))
		if c.Spec.VolumeName != "" {
			r.places.sourceReady(c.Namespace)
		}
	} else {
		// A volume may be bound to it that it did not name yet.
		r.volumesOf(old)
	}
}

func (r *reconciler) volumesOf(c *corev1.PersistentVolumeClaim) {
	list, err := r.volumes.List(labels.Everything())
	if err != nil {
		return // never with a cache
	}
	for _, pv := range list {
		if ref := pv.Spec.ClaimRef; ref != nil && ref.Namespace == c.Namespace && ref.Name == c.Name {
			r.loop.Add(volumeKey + pv.Name)
		}
	}
}

func (r *reconciler) classChanged(_, class *storagev1.StorageClass) {
	if class != nil {
		r.claimsThat(waiting)
	}
}

// podChanged: a claim that waits for its first pod says so.
func (r *reconciler) podChanged(old, pod *corev1.Pod) {
	last := pod
	if last == nil {
		last = old
	}
	if volume := r.recyclings.volume(last); volume != "" {
		r.loop.Add(volumeKey + volume)
	}
	if pod == nil || old != nil && old.Spec.NodeName == pod.Spec.NodeName {
		return
	}
	for _, key := range claimNames(pod) {
		r.loop.Add(claimKey + key)
	}
}

func (r *reconciler) claimsThat(want func(*corev1.PersistentVolumeClaim) bool) {
	list, err := r.claims.List(labels.Everything())
	if err != nil {
		return // never with a cache
	}
	for _, c := range list {
		if want(c) {
			r.loop.Add(claimKey + controller.Key(c.Namespace, c.Name))
		}
	}
}

// Reconcile decides about one volume or claim.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	if name, ok := strings.CutPrefix(key, volumeKey); ok {
		return r.volume(ctx, name)
	}
	namespace, name, err := cache.SplitMetaNamespaceKey(strings.TrimPrefix(key, claimKey))
	if err != nil {
		return 0, nil
	}
	return r.claim(ctx, namespace, name)
}

func (r *reconciler) claim(ctx context.Context, namespace, name string) (after time.Duration, err error) {
	r.choosing.Lock()
	chosen := sync.OnceFunc(r.choosing.Unlock)
	defer chosen()
	c, err := r.claims.PersistentVolumeClaims(namespace).Get(name)
	if err != nil {
		r.places.forget(controller.Key(namespace, name))
		return 0, controller.IgnoreGone(err)
	}
	if now := migratedClaim(c); now != c {
		c, err = r.client.CoreV1().PersistentVolumeClaims(namespace).Update(ctx, now, metav1.UpdateOptions{})
		if err != nil {
			return 0, err
		}
	}
	v, err := r.view(c)
	if err != nil {
		return 0, err
	}
	step, err := planClaim(c, v)
	if err != nil {
		return 0, err
	}
	if step.Place == nil {
		r.places.forget(controller.Key(namespace, name))
	} else {
		return r.place(ctx, c, step, v)
	}
	if step.Bind == nil || isFor(step.Bind, c) {
		chosen() // what is left to write is this claim's alone
	}
	switch {
	case step.Bind != nil:
		err = r.bind(ctx, c, step.Bind)
	case step.Class != "":
		_, err = r.updateClaim(ctx, c, func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &step.Class })
	case step.Provisioner != "":
		_, err = r.updateClaim(ctx, c, func(c *corev1.PersistentVolumeClaim) { ask(c, step.Provisioner) })
	case step.Phase != "":
		err = r.setClaim(ctx, c, step.Phase, nil)
	}
	if err == nil && step.Event != nil {
		r.events.Event(c, step.Event.kind, step.Event.reason, step.Event.message)
	}
	return 0, err
}

// isFor tells whether a volume is kept for a claim, as those that are made for one.
func isFor(pv *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) bool {
	return pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID == c.UID
}

// ask has a provisioner make the claim's volume.
func ask(c *corev1.PersistentVolumeClaim, provisioner string) {
	metav1.SetMetaDataAnnotation(&c.ObjectMeta, storagehelper.AnnBetaStorageProvisioner, provisioner)
	metav1.SetMetaDataAnnotation(&c.ObjectMeta, storagehelper.AnnStorageProvisioner, provisioner)
}

func (r *reconciler) view(c *corev1.PersistentVolumeClaim) (*view, error) {
	volumes, err := r.volumes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	classes, err := r.classes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	return &view{Volumes: volumes, Classes: classes, Waiting: func() []string { return r.waitingPods(c) }}, nil
}

func (r *reconciler) waitingPods(c *corev1.PersistentVolumeClaim) (names []string) {
	pods, err := r.pods.ByIndex(byClaim, controller.Key(c.Namespace, c.Name))
	if err != nil {
		return nil // the index is there
	}
	for _, obj := range pods {
		if p, ok := obj.(*corev1.Pod); ok && p.Spec.NodeName == "" && !controller.PodTerminal(p) {
			names = append(names, p.Name)
		}
	}
	slices.Sort(names)
	return names
}

// bind makes volume and claim point at each other. Each write is repeatable;
// what a crash leaves half done the next call ends.
func (r *reconciler) bind(ctx context.Context, c *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) error {
	bound, changed, err := storagehelper.GetBindVolumeToClaim(pv, c)
	if err != nil {
		return err
	}
	if changed {
		if bound, err = r.client.CoreV1().PersistentVolumes().Update(ctx, bound, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	if err := r.setVolume(ctx, bound, corev1.VolumeBound, ""); err != nil {
		return err
	}
	c, err = r.updateClaim(ctx, c, func(c *corev1.PersistentVolumeClaim) {
		if c.Spec.VolumeName != pv.Name {
			c.Spec.VolumeName = pv.Name
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, storagehelper.AnnBoundByController, "yes")
		}
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, storagehelper.AnnBindCompleted, "yes")
	})
	if err != nil {
		return err
	}
	return r.setClaim(ctx, c, corev1.ClaimBound, bound)
}

// updateClaim writes what change makes of the claim, if it changes anything.
func (r *reconciler) updateClaim(ctx context.Context, c *corev1.PersistentVolumeClaim,
	change func(*corev1.PersistentVolumeClaim)) (*corev1.PersistentVolumeClaim, error) {
	changed := c.DeepCopy()
	change(changed)
	if equality.Semantic.DeepEqual(c, changed) {
		return c, nil
	}
	return r.client.CoreV1().PersistentVolumeClaims(c.Namespace).Update(ctx, changed, metav1.UpdateOptions{})
}

func (r *reconciler) setClaim(ctx context.Context, c *corev1.PersistentVolumeClaim,
	phase corev1.PersistentVolumeClaimPhase, pv *corev1.PersistentVolume) error {
	status := claimStatus(c, phase, pv)
	if equality.Semantic.DeepEqual(status, c.Status) {
		return nil
	}
	c = c.DeepCopy()
	c.Status = status
	_, err := r.client.CoreV1().PersistentVolumeClaims(c.Namespace).UpdateStatus(ctx, c, metav1.UpdateOptions{})
	return err
}

func (r *reconciler) setVolume(ctx context.Context, pv *corev1.PersistentVolume,
	phase corev1.PersistentVolumePhase, message string) error {
	if pv.Status.Phase == phase {
		return nil
	}
	pv = pv.DeepCopy()
	pv.Status.Phase, pv.Status.Message = phase, message
	_, err := r.client.CoreV1().PersistentVolumes().UpdateStatus(ctx, pv, metav1.UpdateOptions{})
	return err
}

func (r *reconciler) volume(ctx context.Context, name string) (after time.Duration, err error) {
	pv, err := r.volumes.Get(name)
	if apierrors.IsNotFound(err) {
		return 0, r.dropRecycling(ctx, name)
	} else if err != nil {
		return 0, err
	}
	if now := migrated(pv); now != pv {
		if pv, err = r.client.CoreV1().PersistentVolumes().Update(ctx, now, metav1.UpdateOptions{}); err != nil {
			return 0, err
		}
	}
	claim, err := r.claimOf(ctx, pv)
	if err != nil {
		return 0, err
	}
	step := planVolume(pv, claim)
	if step.Claim {
		r.loop.Add(claimKey + controller.Key(pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name))
	}
	if !step.Recycle {
		if err := r.dropRecycling(ctx, name); err != nil {
			return 0, err
		}
	}
	if step.Unbind {
		return 0, r.free(ctx, pv)
	}
	if step.Phase != "" {
		if err := r.setVolume(ctx, pv, step.Phase, step.Message); err != nil {
			return 0, err
		}
	}
	if step.Recycle && step.Phase == "" { // else when the cache shows the phase
		return r.recycle(ctx, pv)
	}
	if e := step.Event; e != nil {
		r.events.Event(pv, e.kind, e.reason, e.message)
	}
	if e := step.ClaimEvent; e != nil {
		r.events.Event(claim, e.kind, e.reason, e.message)
	}
	return 0, nil
}

// free takes a volume's claim away from it. That it is available is told when the
// cache shows it.
func (r *reconciler) free(ctx context.Context, pv *corev1.PersistentVolume) error {
	_, err := r.client.CoreV1().PersistentVolumes().Update(ctx, unbound(pv), metav1.UpdateOptions{})
	return err
}

// claimOf is the claim that the volume is bound to, nil when it is gone. That
// it is gone is asked of the API: the volume may be newer than the cache, and
// what is released may be deleted.
func (r *reconciler) claimOf(ctx context.Context, pv *corev1.PersistentVolume) (*corev1.PersistentVolumeClaim, error) {
	ref := pv.Spec.ClaimRef
	if ref == nil || ref.UID == "" {
		return nil, nil
	}
	c, err := r.claims.PersistentVolumeClaims(ref.Namespace).Get(ref.Name)
	if err == nil && c.UID == ref.UID {
		return c, nil
	}
	if pv.Status.Phase == corev1.VolumeReleased || pv.Status.Phase == corev1.VolumeFailed {
		return nil, nil // asked before
	}
	c, err = r.client.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil || c.UID != ref.UID {
		return nil, controller.IgnoreGone(err)
	}
	return c, nil
}
