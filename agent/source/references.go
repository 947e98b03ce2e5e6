package source

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/record"
)

// reference names what a pod refers to that only the API has, in upstream's words, "" for
// nothing: a pod of a manifest runs without an API.
func reference(p *corev1.Pod) string {
	var secrets, configMaps bool
	record.EachContainer(p, func(c *corev1.Container) {
		for _, from := range c.EnvFrom {
			secrets, configMaps = secrets || from.SecretRef != nil, configMaps || from.ConfigMapRef != nil
		}
		for _, v := range c.Env {
			if from := v.ValueFrom; from != nil {
				secrets, configMaps = secrets || from.SecretKeyRef != nil, configMaps || from.ConfigMapKeyRef != nil
			}
		}
	})
	var others []string
	for i := range p.Spec.Volumes {
		switch r := volumeReference(&p.Spec.Volumes[i].VolumeSource); r {
		case "":
		case refersToSecrets:
			secrets = true
		case refersToConfigMaps:
			configMaps = true
		default:
			others = append(others, r)
		}
	}
	switch {
	case p.Spec.ServiceAccountName != "" || p.Spec.DeprecatedServiceAccount != "":
		return "serviceaccounts"
	case secrets || len(p.Spec.ImagePullSecrets) > 0:
		return refersToSecrets
	case configMaps:
		return refersToConfigMaps
	case len(p.Spec.ResourceClaims) > 0:
		return "resourceclaims"
	case len(others) > 0:
		return others[0]
	}
	return ""
}

const (
	refersToSecrets    = "secrets"
	refersToConfigMaps = "configmaps"
)

func volumeReference(v *corev1.VolumeSource) string {
	switch {
	case v.Secret != nil || v.AzureFile != nil || v.CSI != nil && v.CSI.NodePublishSecretRef != nil:
		return refersToSecrets
	case v.ConfigMap != nil:
		return refersToConfigMaps
	case v.CSI != nil:
		return "csidrivers (via CSI volumes)"
	case v.Glusterfs != nil:
		return "endpoints (via glusterFS volumes)"
	case v.PersistentVolumeClaim != nil:
		return "persistentvolumeclaims"
	case v.Ephemeral != nil:
		return "persistentvolumeclaims (via ephemeral volumes)"
	case v.Projected != nil:
		return projectedReference(v.Projected.Sources)
	}
	return ""
}

func projectedReference(sources []corev1.VolumeProjection) string {
	has := func(f func(corev1.VolumeProjection) bool) bool { return slices.ContainsFunc(sources, f) }
	switch {
	case has(func(s corev1.VolumeProjection) bool { return s.Secret != nil }):
		return refersToSecrets
	case has(func(s corev1.VolumeProjection) bool { return s.ConfigMap != nil }):
		return refersToConfigMaps
	case has(func(s corev1.VolumeProjection) bool { return s.ServiceAccountToken != nil }):
		return "serviceaccounts (via projected volumes)"
	case has(func(s corev1.VolumeProjection) bool { return s.ClusterTrustBundle != nil }):
		return "clustertrustbundles"
	case has(func(s corev1.VolumeProjection) bool { return s.PodCertificate != nil }):
		return "podcertificates"
	}
	return ""
}
