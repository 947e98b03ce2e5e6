package podspec

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

func (w *warnings) volume(s *corev1.VolumeSource, p *field.Path) {
	warn := func(set bool, name, message string) {
		if set {
			w.add(p.Child(name), "%s", message)
		}
	}
	warn(s.PhotonPersistentDisk != nil, "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+")
	warn(s.GitRepo != nil, "gitRepo", "deprecated in v1.11, and disabled by default in v1.33+")
	warn(s.ScaleIO != nil, "scaleIO", "deprecated in v1.16, non-functional in v1.22+")
	warn(s.Flocker != nil, "flocker", "deprecated in v1.22, non-functional in v1.25+")
	warn(s.StorageOS != nil, "storageOS", "deprecated in v1.22, non-functional in v1.25+")
	warn(s.Quobyte != nil, "quobyte", "deprecated in v1.22, non-functional in v1.25+")
	warn(s.Glusterfs != nil, "glusterfs", "deprecated in v1.25, non-functional in v1.26+")
	if s.Ephemeral != nil && s.Ephemeral.VolumeClaimTemplate != nil {
		w.list = append(w.list,
			ClaimWarnings(&s.Ephemeral.VolumeClaimTemplate.Spec, p.Child("ephemeral", "volumeClaimTemplate", "spec"))...)
	}
	warn(s.CephFS != nil, "cephfs", "deprecated in v1.28, non-functional in v1.31+")
	warn(s.RBD != nil, "rbd", "deprecated in v1.28, non-functional in v1.31+")
}

// ClaimWarnings tells of a claim's sizes that are not whole bytes.
func ClaimWarnings(s *corev1.PersistentVolumeClaimSpec, p *field.Path) []string {
	w := &warnings{}
	for _, r := range []struct {
		name string
		list corev1.ResourceList
	}{{"requests", s.Resources.Requests}, {"limits", s.Resources.Limits}} {
		if q := r.list[corev1.ResourceStorage]; q.MilliValue()%1000 != 0 {
			w.add(p.Child("resources", r.name).Key("storage"), fractional, q.String())
		}
	}
	return w.list
}

// filePath is where a volume puts a file, and what the file is made from; source
// is empty where the volume has only one.
type filePath struct{ path, source string }

func (f filePath) String() string {
	if f.source == "" {
		return fmt.Sprintf("%q", f.path)
	}
	return fmt.Sprintf("%q (%s)", f.path, f.source)
}

// overlaps warns of files of one volume of which one hides another, or is where
// another needs a directory.
func overlaps(v *corev1.Volume) (out []string) {
	kind, files := "", []filePath(nil)
	switch s := &v.VolumeSource; {
	case s.ConfigMap != nil:
		kind, files = fmt.Sprintf("ConfigMap %q", s.ConfigMap.Name), keyPaths(s.ConfigMap.Items, "")
	case s.Secret != nil:
		kind, files = fmt.Sprintf("Secret %q", s.Secret.SecretName), keyPaths(s.Secret.Items, "")
	case s.DownwardAPI != nil:
		kind, files = "DownwardAPI", downwardPaths(s.DownwardAPI.Items, "")
	case s.Projected != nil:
		kind = "Projected"
		for i := range s.Projected.Sources {
			if s.Projected.Sources[i] == (corev1.VolumeProjection{}) {
				out = append(out, fmt.Sprintf("volume %q (Projected) has no sources provided", v.Name))
			}
			files = append(files, projectedPaths(&s.Projected.Sources[i])...)
		}
	}
	for i := range files {
		files[i].path = strings.TrimRight(files[i].path, "/")
		for _, before := range files[:i] {
			if overlap(files[i].path, before.path) {
				out = append(out,
					fmt.Sprintf("volume %q (%s): overlapping paths: %s with %s", v.Name, kind, files[i], before))
			}
		}
	}
	return out
}

// overlap: one path is the other, or a directory that the other is in.
func overlap(a, b string) bool {
	return a != "" && b != "" && (strings.HasPrefix(a+"/", b+"/") || strings.HasPrefix(b+"/", a+"/"))
}

func projectedPaths(s *corev1.VolumeProjection) []filePath {
	switch {
	case s.ConfigMap != nil && s.ConfigMap.Items != nil:
		return keyPaths(s.ConfigMap.Items, fmt.Sprintf("ConfigMap %q", s.ConfigMap.Name))
	case s.Secret != nil && s.Secret.Items != nil:
		return keyPaths(s.Secret.Items, fmt.Sprintf("Secret %q", s.Secret.Name))
	case s.DownwardAPI != nil && s.DownwardAPI.Items != nil:
		return downwardPaths(s.DownwardAPI.Items, "DownwardAPI")
	case s.ServiceAccountToken != nil:
		return []filePath{{s.ServiceAccountToken.Path, "ServiceAccountToken"}}
	case s.ClusterTrustBundle != nil:
		name := ptr.Deref(s.ClusterTrustBundle.Name, ptr.Deref(s.ClusterTrustBundle.SignerName, ""))
		return []filePath{{s.ClusterTrustBundle.Path, fmt.Sprintf("ClusterTrustBundle %q", name)}}
	case s.PodCertificate != nil:
		return []filePath{
			{s.PodCertificate.CertificateChainPath, "PodCertificate chain"},
			{s.PodCertificate.KeyPath, "PodCertificate key"},
			{s.PodCertificate.CredentialBundlePath, "PodCertificate credential bundle"},
		}
	}
	return nil
}

func keyPaths(items []corev1.KeyToPath, source string) []filePath {
	out := make([]filePath, len(items))
	for i := range items {
		out[i] = filePath{items[i].Path, source}
	}
	return out
}

func downwardPaths(items []corev1.DownwardAPIVolumeFile, source string) []filePath {
	out := make([]filePath, len(items))
	for i := range items {
		out[i] = filePath{items[i].Path, source}
	}
	return out
}
