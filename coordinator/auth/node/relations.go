package node

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/auth/podref"
)

// Kinds that no pod names but that belong to a node.
const (
	podKind    podref.Kind = "pods"
	volume     podref.Kind = "persistentvolumes"
	attachment podref.Kind = "volumeattachments"
	slice      podref.Kind = "resourceslices"
)

// byReference indexes bound pods by node and by what they refer to.
const byReference = "node.shoal.io/reference"

// lag is how long a relation that is not known is waited for. The agent may ask
// within the moment between its own watch event and the informer's, and a
// refusal would cost the pod a retry.
var lag = []time.Duration{time.Millisecond, 4 * time.Millisecond, 15 * time.Millisecond, 60 * time.Millisecond}

type relations struct {
	world atomic.Pointer[world]
}

type world struct {
	pods   cache.Indexer
	client kubernetes.Interface
	// extension reads an object of an extension of the API.
	extension func(ctx context.Context, path ...string) ([]byte, error)
}

func (r *relations) connect(client kubernetes.Interface, f informers.SharedInformerFactory) error {
	informer := f.Core().V1().Pods().Informer()
	if err := informer.AddIndexers(cache.Indexers{byReference: referenceKeys}); err != nil {
		return fmt.Errorf("index pods by reference: %w", err)
	}
	r.world.Store(&world{pods: informer.GetIndexer(), client: client, extension: extension(client)})
	return nil
}

// has says whether the object belongs to the node or to a pod bound to it.
func (r *relations) has(ctx context.Context, node string, kind podref.Kind, namespace, name string) bool {
	w := r.world.Load()
	if w == nil {
		return false
	}
	switch kind {
	case attachment:
		va, err := w.client.StorageV1().VolumeAttachments().Get(ctx, name, cached)
		return err == nil && va.Spec.NodeName == node
	case slice:
		s, err := w.client.ResourceV1().ResourceSlices().Get(ctx, name, cached)
		return err == nil && s.Spec.NodeName != nil && *s.Spec.NodeName == node
	case volume:
		return w.hasVolume(ctx, node, name)
	case selectedClaim, keptVolume, capacity, usedSnapshot, usedContent:
		return node != "" && w.hasLocal(ctx, node, kind, namespace, name)
	}
	if w.named(ctx, node, kind, namespace, name) {
		return true
	}
	return kind == podref.Secret && w.hasVolumeSecret(ctx, node, namespace, name)
}

// cached reads from the watch cache.
var cached = metav1.GetOptions{ResourceVersion: "0"}

// named looks the relation up in the index, and waits out the informer's lag.
func (w *world) named(ctx context.Context, node string, kind podref.Kind, namespace, name string) bool {
	key := referenceKey(node, kind, namespace, name)
	for _, wait := range lag {
		if w.indexed(key) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(wait):
		}
	}
	return w.indexed(key)
}

func (w *world) indexed(key string) bool {
	keys, err := w.pods.IndexKeys(byReference, key)
	return err == nil && len(keys) > 0
}

// hasVolume goes from the volume to its claim to a pod.
func (w *world) hasVolume(ctx context.Context, node, name string) bool {
	pv, err := w.client.CoreV1().PersistentVolumes().Get(ctx, name, cached)
	if err != nil || pv.Spec.ClaimRef == nil {
		return false
	}
	return w.indexed(referenceKey(node, podref.Claim, pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name))
}

// hasVolumeSecret looks for the secret in the volumes that the node's pods
// claim: a path that only storage drivers' secrets need.
func (w *world) hasVolumeSecret(ctx context.Context, node, namespace, name string) bool {
	pods, err := w.pods.ByIndex(byReference, claimantKey(node))
	if err != nil {
		return false
	}
	for _, obj := range pods {
		pod := obj.(*corev1.Pod)
		found := false
		podref.Visit(pod, func(kind podref.Kind, claim string) {
			if kind == podref.Claim && !found {
				found = w.claimHasSecret(ctx, pod.Namespace, claim,
					corev1.SecretReference{Namespace: namespace, Name: name})
			}
		})
		if found {
			return true
		}
	}
	return false
}

func (w *world) claimHasSecret(ctx context.Context, namespace, claim string, want corev1.SecretReference) bool {
	pvc, err := w.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, claim, cached)
	if err != nil || pvc.Spec.VolumeName == "" {
		return false
	}
	pv, err := w.client.CoreV1().PersistentVolumes().Get(ctx, pvc.Spec.VolumeName, cached)
	if err != nil || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.Namespace != namespace ||
		pv.Spec.ClaimRef.Name != claim {
		return false
	}
	for _, ref := range volumeSecrets(&pv.Spec) {
		if ref != nil && ref.Name == want.Name &&
			(ref.Namespace == want.Namespace || ref.Namespace == "" && namespace == want.Namespace) {
			return true
		}
	}
	return false
}

// volumeSecrets lists the secrets that a volume names; the controller's own are
// not for nodes.
func volumeSecrets(s *corev1.PersistentVolumeSpec) []*corev1.SecretReference {
	switch {
	case s.CSI != nil:
		return []*corev1.SecretReference{s.CSI.NodeStageSecretRef, s.CSI.NodePublishSecretRef, s.CSI.NodeExpandSecretRef}
	case s.ISCSI != nil:
		return []*corev1.SecretReference{s.ISCSI.SecretRef}
	case s.RBD != nil:
		return []*corev1.SecretReference{s.RBD.SecretRef}
	case s.CephFS != nil:
		return []*corev1.SecretReference{s.CephFS.SecretRef}
	case s.FlexVolume != nil:
		return []*corev1.SecretReference{s.FlexVolume.SecretRef}
	case s.Cinder != nil:
		return []*corev1.SecretReference{s.Cinder.SecretRef}
	case s.AzureFile != nil:
		return []*corev1.SecretReference{{
			Name: s.AzureFile.SecretName, Namespace: ptr.Deref(s.AzureFile.SecretNamespace, ""),
		}}
	}
	return nil
}

func referenceKey(node string, kind podref.Kind, namespace, name string) string {
	return node + " " + string(kind) + "/" + namespace + "/" + name
}

func claimantKey(node string) string { return node + " claimants" }

// referenceKeys is the index function: the keys of a bound pod. A mirror pod
// gives its node no right but to itself.
func referenceKeys(obj any) ([]string, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" {
		return nil, nil
	}
	node := pod.Spec.NodeName
	keys := []string{referenceKey(node, podKind, pod.Namespace, pod.Name)}
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return keys, nil
	}
	claims := false
	podref.Visit(pod, func(kind podref.Kind, name string) {
		keys = append(keys, referenceKey(node, kind, pod.Namespace, name))
		claims = claims || kind == podref.Claim
	})
	if claims {
		keys = append(keys, claimantKey(node))
	}
	return keys, nil
}
