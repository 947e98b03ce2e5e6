package resourceclaim

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// use is one claim of a pod's spec.
type use struct {
	// known tells whether it is decided which claim it is; name is "" then where
	// none is needed.
	known bool
	name  string
	// generated: the claim must be one that was made for the pod.
	generated bool
}

// useOf says which claim a pod uses under one name of its spec.
func useOf(pod *corev1.Pod, c *corev1.PodResourceClaim) use {
	if c.ResourceClaimName != nil {
		return use{known: true, name: *c.ResourceClaimName}
	}
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.Name != c.Name {
			continue
		}
		if s.ResourceClaimName == nil {
			return use{known: true}
		}
		return use{known: true, name: *s.ResourceClaimName, generated: true}
	}
	return use{generated: true}
}

// claimNames are the claims that a pod uses, as far as that is decided.
func claimNames(pod *corev1.Pod) (names []string) {
	for i := range pod.Spec.ResourceClaims {
		if u := useOf(pod, &pod.Spec.ResourceClaims[i]); u.name != "" {
			names = append(names, u.name)
		}
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		names = append(names, s.ResourceClaimName)
	}
	return names
}

// over tells whether a pod will run no more.
func over(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed ||
		pod.DeletionTimestamp != nil && pod.Spec.NodeName == ""
}

// generate is the claim of a template for a pod.
func generate(pod *corev1.Pod, name string, t *resourcev1.ResourceClaimTemplate) *resourcev1.ResourceClaim {
	annotations := maps.Clone(t.Spec.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[resourcev1.PodResourceClaimAnnotation] = name
	yes := true
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: baseName(pod.Name, name),
			Namespace:    pod.Namespace,
			Labels:       t.Spec.Labels,
			Annotations:  annotations,
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: &yes},
			},
		},
		Spec: t.Spec.Spec,
	}
}

// baseName is what a generated claim's name begins with. Where that would be too
// long, both parts are shortened, so that something of each is left.
func baseName(pod, claim string) string {
	const most = 57 // of 63, for a hyphen and five random characters
	base := pod + "-" + claim + "-"
	if n := len(base); n > most {
		return pod[:len(pod)*most/n] + "-" + claim[:len(claim)*most/n]
	}
	return base
}

// isFor tells whether a claim was made for a pod; the error is for its event.
func isFor(pod *corev1.Pod, c *resourcev1.ResourceClaim) error {
	if metav1.IsControlledBy(c, pod) {
		return nil
	}
	return fmt.Errorf("ResourceClaim %s/%s was not created for pod %s/%s (pod is not owner)",
		c.Namespace, c.Name, pod.Namespace, pod.Name)
}

// reservable tells whether an allocated claim is to be reserved for a pod.
func reservable(pod *corev1.Pod, c *resourcev1.ResourceClaim) bool {
	reserved := slices.ContainsFunc(c.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool {
		return r.UID == pod.UID
	})
	return c.Status.Allocation != nil && !reserved &&
		len(c.Status.ReservedFor) < resourcev1.ResourceClaimReservedForMaxSize
}

// owningPod is the pod that a claim was generated for.
func owningPod(c *resourcev1.ResourceClaim) (name string, uid types.UID, ok bool) {
	ref := metav1.GetControllerOfNoCopy(c)
	if ref == nil || ref.APIVersion != "v1" || ref.Kind != "Pod" {
		return "", "", false
	}
	return ref.Name, ref.UID, true
}
