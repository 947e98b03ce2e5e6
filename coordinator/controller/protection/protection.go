package protection

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// The finalizers, as upstream has them; admission sets them on new objects.
const (
	claimFinalizer  = "kubernetes.io/pvc-protection"
	volumeFinalizer = "kubernetes.io/pv-protection"
	classFinalizer  = "kubernetes.io/vac-protection"
)

const byClaim = "protected-claim" // index of pods

// finalizersFor is an object's finalizers as they should be: present while it lives,
// gone once it is deleted and not in use. ok is false when they are so.
func finalizersFor(m metav1.Object, finalizer string, used func() (bool, error)) (list []string, ok bool, err error) {
	have := m.GetFinalizers()
	i := slices.Index(have, finalizer)
	switch {
	case m.GetDeletionTimestamp() == nil && i < 0:
		return append(slices.Clone(have), finalizer), true, nil
	case m.GetDeletionTimestamp() == nil || i < 0:
		return nil, false, nil
	}
	if in, err := used(); in || err != nil {
		return nil, false, err
	}
	return slices.Delete(slices.Clone(have), i, i+1), true, nil
}

// wants tells whether an object that changed is to be looked at.
func wants(m metav1.Object, finalizer string) bool {
	return slices.Contains(m.GetFinalizers(), finalizer) == (m.GetDeletionTimestamp() != nil)
}

// usesClaim tells whether the claim must stay for the pod. One without a node
// does not hold it, for a node does not start a pod whose claim goes.
func usesClaim(pod *corev1.Pod, c *corev1.PersistentVolumeClaim) bool {
	if pod.Spec.NodeName == "" {
		return false
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == c.Name {
			return true
		}
		if v.Ephemeral != nil && !shutDown(pod) && ephemeral.VolumeClaimName(pod, v) == c.Name &&
			ephemeral.VolumeIsForPod(pod, c) == nil {
			return true
		}
	}
	return false
}

// shutDown tells whether the node is done with a pod that only finalizers keep.
func shutDown(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && ptr.Deref(pod.DeletionGracePeriodSeconds, 1) == 0
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

// NewClaims builds the controller of claims.
func NewClaims(env controller.Env) (*controller.Loop, error) {
	loop := controller.New("pvc-protection", 2, env.Log)
	core := env.Informers.Core().V1()
	err := controller.Index(core.Pods().Informer(), byClaim, func(obj any) ([]string, error) {
		if pod, ok := obj.(*corev1.Pod); ok {
			return claimNames(pod), nil
		}
		return nil, nil
	})
	if err != nil {
		return nil, err
	}
	claims, pods := core.PersistentVolumeClaims().Lister(), core.Pods().Informer().GetIndexer()
	loop.Reconciler = controller.Func(func(ctx context.Context, key string) (time.Duration, error) {
		namespace, name, err := cache.SplitMetaNamespaceKey(key)
		if err != nil {
			return 0, nil
		}
		c, err := claims.PersistentVolumeClaims(namespace).Get(name)
		if err != nil {
			return 0, controller.IgnoreGone(err)
		}
		list, ok, err := finalizersFor(c, claimFinalizer, func() (bool, error) { return claimUsed(ctx, env, pods, c) })
		if !ok || err != nil {
			return 0, err
		}
		c = c.DeepCopy()
		c.Finalizers = list
		_, err = env.Client.CoreV1().PersistentVolumeClaims(namespace).Update(ctx, c, metav1.UpdateOptions{})
		return 0, controller.IgnoreGone(err)
	})
	controller.Watch(loop, core.PersistentVolumeClaims().Informer(), func(_, c *corev1.PersistentVolumeClaim) {
		if c != nil && wants(c, claimFinalizer) {
			loop.Add(controller.Key(c.Namespace, c.Name))
		}
	})
	controller.Watch(loop, core.Pods().Informer(), func(old, pod *corev1.Pod) {
		if old != nil && (pod == nil || pod.UID != old.UID || shutDown(pod)) {
			for _, key := range claimNames(old) {
				loop.Add(key)
			}
		}
	})
	return loop, nil
}

// claimUsed asks the API too before it says no: a pod may be newer than the cache.
func claimUsed(ctx context.Context, env controller.Env, pods cache.Indexer,
	c *corev1.PersistentVolumeClaim) (bool, error) {
	cached, err := pods.ByIndex(byClaim, controller.Key(c.Namespace, c.Name))
	if err != nil {
		return false, err
	}
	for _, obj := range cached {
		if pod, ok := obj.(*corev1.Pod); ok && usesClaim(pod, c) {
			return true, nil
		}
	}
	list, err := env.Client.CoreV1().Pods(c.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(list.Items, func(pod corev1.Pod) bool { return usesClaim(&pod, c) }), nil
}

// NewVolumes builds the controller of volumes.
func NewVolumes(env controller.Env) (*controller.Loop, error) {
	loop := controller.New("pv-protection", 1, env.Log)
	informer := env.Informers.Core().V1().PersistentVolumes()
	lister := informer.Lister()
	loop.Reconciler = controller.Func(func(ctx context.Context, name string) (time.Duration, error) {
		pv, err := lister.Get(name)
		if err != nil {
			return 0, controller.IgnoreGone(err)
		}
		list, ok, err := finalizersFor(pv, volumeFinalizer,
			func() (bool, error) { return pv.Status.Phase == corev1.VolumeBound, nil })
		if !ok || err != nil {
			return 0, err
		}
		pv = pv.DeepCopy()
		pv.Finalizers = list
		_, err = env.Client.CoreV1().PersistentVolumes().Update(ctx, pv, metav1.UpdateOptions{})
		return 0, controller.IgnoreGone(err)
	})
	controller.Watch(loop, informer.Informer(), func(_, pv *corev1.PersistentVolume) {
		if pv != nil && wants(pv, volumeFinalizer) {
			loop.Add(pv.Name)
		}
	})
	return loop, nil
}

// NewClasses builds the controller of VolumeAttributesClasses.
func NewClasses(env controller.Env) (*controller.Loop, error) {
	loop := controller.New("volumeattributesclass-protection", 1, env.Log)
	core, classes := env.Informers.Core().V1(), env.Informers.Storage().V1().VolumeAttributesClasses()
	volumes, claims, lister := core.PersistentVolumes().Lister(), core.PersistentVolumeClaims().
		Lister(), classes.Lister()
	used := func(name string) (bool, error) {
		pvs, err := volumes.List(labels.Everything())
		if err != nil {
			return false, err
		}
		pvcs, err := claims.List(labels.Everything())
		if err != nil {
			return false, err
		}
		return slices.ContainsFunc(pvs, func(pv *corev1.PersistentVolume) bool {
			return ptr.Deref(pv.Spec.VolumeAttributesClassName, "") == name
		}) ||
			slices.ContainsFunc(pvcs,
				func(c *corev1.PersistentVolumeClaim) bool { return slices.Contains(classesOf(c), name) }), nil
	}
	loop.Reconciler = controller.Func(func(ctx context.Context, name string) (time.Duration, error) {
		class, err := lister.Get(name)
		if err != nil {
			return 0, controller.IgnoreGone(err)
		}
		list, ok, err := finalizersFor(class, classFinalizer, func() (bool, error) { return used(name) })
		if !ok || err != nil {
			return 0, err
		}
		class = class.DeepCopy()
		class.Finalizers = list
		_, err = env.Client.StorageV1().VolumeAttributesClasses().Update(ctx, class, metav1.UpdateOptions{})
		return 0, controller.IgnoreGone(err)
	})
	controller.Watch(loop, classes.Informer(), func(_, class *storagev1.VolumeAttributesClass) {
		if class != nil && wants(class, classFinalizer) {
			loop.Add(class.Name)
		}
	})
	controller.Watch(loop, core.PersistentVolumes().Informer(), func(old, _ *corev1.PersistentVolume) {
		if old != nil && old.Spec.VolumeAttributesClassName != nil {
			loop.Add(*old.Spec.VolumeAttributesClassName)
		}
	})
	controller.Watch(loop, core.PersistentVolumeClaims().Informer(), func(old, _ *corev1.PersistentVolumeClaim) {
		if old != nil {
			for _, name := range classesOf(old) {
				loop.Add(name)
			}
		}
	})
	return loop, nil
}

// classesOf are the attribute classes that a claim has, wants or is given.
func classesOf(c *corev1.PersistentVolumeClaim) (names []string) {
	target := ""
	if m := c.Status.ModifyVolumeStatus; m != nil {
		target = m.TargetVolumeAttributesClassName
	}
	for _, n := range []string{ptr.Deref(c.Spec.VolumeAttributesClassName, ""),
		ptr.Deref(c.Status.CurrentVolumeAttributesClassName, ""), target} {
		if n != "" {
			names = append(names, n)
		}
	}
	return names
}
