// Package podref lists the API objects that a pod's spec names: what a node
// may read for its sake, and what a pod of a manifest and its mirror may not name.
package podref

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/ephemeral"
)

// Kind is the resource of a reference.
type Kind string

// The resources that a pod can name.
const (
	Secret         Kind = "secrets"
	ConfigMap      Kind = "configmaps"
	Claim          Kind = "persistentvolumeclaims"
	ServiceAccount Kind = "serviceaccounts"
	ResourceClaim  Kind = "resourceclaims"
)

// Visit calls visit for each object of the pod's namespace that the pod names;
// one named twice is visited twice.
func Visit(pod *corev1.Pod, visit func(kind Kind, name string)) {
	v := visitor(visit)
	v.see(ServiceAccount, cmp.Or(pod.Spec.ServiceAccountName, pod.Spec.DeprecatedServiceAccount))
	for i := range pod.Spec.ImagePullSecrets {
		v.see(Secret, pod.Spec.ImagePullSecrets[i].Name)
	}
	for i := range pod.Spec.InitContainers {
		v.container(pod.Spec.InitContainers[i].Env, pod.Spec.InitContainers[i].EnvFrom)
	}
	for i := range pod.Spec.Containers {
		v.container(pod.Spec.Containers[i].Env, pod.Spec.Containers[i].EnvFrom)
	}
	for i := range pod.Spec.EphemeralContainers {
		v.container(pod.Spec.EphemeralContainers[i].Env, pod.Spec.EphemeralContainers[i].EnvFrom)
	}
	for i := range pod.Spec.Volumes {
		v.volume(pod, &pod.Spec.Volumes[i])
	}
	for _, c := range pod.Spec.ResourceClaims {
		if c.ResourceClaimName != nil {
			v.see(ResourceClaim, *c.ResourceClaimName)
		}
	}
	for _, c := range pod.Status.ResourceClaimStatuses {
		if c.ResourceClaimName != nil {
			v.see(ResourceClaim, *c.ResourceClaimName)
		}
	}
	if c := pod.Status.ExtendedResourceClaimStatus; c != nil {
		v.see(ResourceClaim, c.ResourceClaimName)
	}
}

type visitor func(kind Kind, name string)

func (v visitor) see(kind Kind, name string) {
	if name != "" {
		v(kind, name)
	}
}

func (v visitor) local(ref *corev1.LocalObjectReference) {
	if ref != nil {
		v.see(Secret, ref.Name)
	}
}

func (v visitor) container(env []corev1.EnvVar, from []corev1.EnvFromSource) {
	for i := range env {
		if s := env[i].ValueFrom; s != nil {
			if s.SecretKeyRef != nil {
				v.see(Secret, s.SecretKeyRef.Name)
			}
			if s.ConfigMapKeyRef != nil {
				v.see(ConfigMap, s.ConfigMapKeyRef.Name)
			}
		}
	}
	for i := range from {
		if s := from[i].SecretRef; s != nil {
			v.see(Secret, s.Name)
		}
		if s := from[i].ConfigMapRef; s != nil {
			v.see(ConfigMap, s.Name)
		}
	}
}

func (v visitor) volume(pod *corev1.Pod, vol *corev1.Volume) {
	switch s := vol.VolumeSource; {
	case s.Secret != nil:
		v.see(Secret, s.Secret.SecretName)
	case s.ConfigMap != nil:
		v.see(ConfigMap, s.ConfigMap.Name)
	case s.Projected != nil:
		v.projected(s.Projected)
	case s.PersistentVolumeClaim != nil:
		v.see(Claim, s.PersistentVolumeClaim.ClaimName)
	case s.Ephemeral != nil:
		v.see(Claim, ephemeral.VolumeClaimName(pod, vol))
	case s.CSI != nil:
		v.local(s.CSI.NodePublishSecretRef)
	case s.AzureFile != nil:
		v.see(Secret, s.AzureFile.SecretName)
	case s.CephFS != nil:
		v.local(s.CephFS.SecretRef)
	case s.Cinder != nil:
		v.local(s.Cinder.SecretRef)
	case s.FlexVolume != nil:
		v.local(s.FlexVolume.SecretRef)
	case s.RBD != nil:
		v.local(s.RBD.SecretRef)
	case s.ScaleIO != nil:
		v.local(s.ScaleIO.SecretRef)
	case s.ISCSI != nil:
		v.local(s.ISCSI.SecretRef)
	case s.StorageOS != nil:
		v.local(s.StorageOS.SecretRef)
	}
}

func (v visitor) projected(p *corev1.ProjectedVolumeSource) {
	for i := range p.Sources {
		if s := p.Sources[i].Secret; s != nil {
			v.see(Secret, s.Name)
		}
		if s := p.Sources[i].ConfigMap; s != nil {
			v.see(ConfigMap, s.Name)
		}
	}
}

// Needed is a resource that a pod needs of the API, in upstream's words, "" for none: a pod
// of a manifest runs without an API, and its mirror gives no right to one.
func Needed(pod *corev1.Pod) string {
	found := map[Kind]bool{}
	Visit(pod, func(kind Kind, _ string) { found[kind] = true })
	for _, kind := range []Kind{ServiceAccount, Secret, ConfigMap} {
		if found[kind] {
			return string(kind)
		}
	}
	if len(pod.Spec.ResourceClaims) > 0 {
		return string(ResourceClaim)
	}
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.ConfigMap != nil:
			return "configmaps (via configmap volumes)"
		case v.Secret != nil:
			return "secrets (via secret volumes)"
		case v.CSI != nil:
			return "csidrivers (via CSI volumes)"
		case v.Glusterfs != nil:
			return "endpoints (via glusterFS volumes)"
		case v.PersistentVolumeClaim != nil:
			return "persistentvolumeclaims"
		case v.Ephemeral != nil:
			return "persistentvolumeclaims (via ephemeral volumes)"
		case v.Projected != nil:
			for _, s := range v.Projected.Sources {
				switch {
				case s.ServiceAccountToken != nil:
					return "serviceaccounts (via projected volumes)"
				case s.ClusterTrustBundle != nil:
					return "clustertrustbundles"
				case s.PodCertificate != nil:
					return "podcertificates"
				}
			}
		}
	}
	return ""
}
