package volume

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// operation counts one that is over. The volume's record tells what is behind a
// claim; nil while that is not known.
func (m *Manager) operation(name string, v *corev1.Volume, known *Volume, begin time.Time, err error) {
	status := "success"
	if err != nil {
		status = "fail-unknown"
	}
	plugin := pluginOf(v)
	if known != nil {
		plugin = known.plugin()
	}
	m.Operations.Since(begin, plugin, name, status, "false")
}

// plugin is what upstream calls the plugin that makes such a volume.
func (v *Volume) plugin() string {
	switch p := v.Persistent; {
	case p == nil:
		return pluginOf(&v.Volume)
	case p.Spec.Local != nil:
		return "kubernetes.io/local-volume"
	case p.Spec.CSI != nil:
		return "kubernetes.io/csi:" + p.Spec.CSI.Driver
	case p.Spec.NFS != nil:
		return "kubernetes.io/nfs"
	case p.Spec.HostPath != nil:
		return "kubernetes.io/host-path"
	}
	return "kubernetes.io/other"
}

func pluginOf(v *corev1.Volume) string {
	if v.CSI != nil {
		return "kubernetes.io/csi:" + v.CSI.Driver
	}
	for _, p := range []struct {
		name string
		is   bool
	}{
		{"empty-dir", v.EmptyDir != nil},
		{"host-path", v.HostPath != nil},
		{"configmap", v.ConfigMap != nil},
		{"secret", v.Secret != nil},
		{"downward-api", v.DownwardAPI != nil},
		{"projected", v.Projected != nil},
		{"nfs", v.NFS != nil},
		{"image", v.Image != nil},
		{"claim", isClaim(v)},
	} {
		if p.is {
			return "kubernetes.io/" + p.name
		}
	}
	return "kubernetes.io/other"
}

// Claimed is a persistent volume that a pod of this node mounts.
type Claimed struct{ Namespace, Claim, Path string }

// Claimed lists the volumes of claims that have file systems.
func (m *Manager) Claimed() []Claimed {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Claimed
	for _, e := range m.pods {
		for _, v := range e.volumes {
			if v.Persistent == nil || v.Persistent.Spec.ClaimRef == nil || v.Path == "" {
				continue
			}
			if mode := v.Persistent.Spec.VolumeMode; mode != nil && *mode != corev1.PersistentVolumeFilesystem {
				continue
			}
			ref := v.Persistent.Spec.ClaimRef
			out = append(out, Claimed{ref.Namespace, ref.Name, v.Path})
		}
	}
	return out
}

// Number counts the volumes of one plugin: what pods want, and what was begun to
// be made.
type Number struct {
	Plugin       string
	Wanted, Made int
}

// Numbers counts all volumes.
func (m *Manager) Numbers() []Number {
	m.mu.Lock()
	defer m.mu.Unlock()
	by := map[string]*Number{}
	of := func(plugin string) *Number {
		if by[plugin] == nil {
			by[plugin] = &Number{Plugin: plugin}
		}
		return by[plugin]
	}
	for _, e := range m.pods {
		for _, v := range e.volumes {
			of(v.plugin()).Made++
		}
		if e.pod == nil {
			continue
		}
		for i := range e.pod.Spec.Volumes {
			v := &e.pod.Spec.Volumes[i]
			if known := e.volumes[v.Name]; known != nil {
				of(known.plugin()).Wanted++
			} else {
				of(pluginOf(v)).Wanted++
			}
		}
	}
	out := make([]Number, 0, len(by))
	for n := range maps.Values(by) {
		out = append(out, *n)
	}
	slices.SortFunc(out, func(a, b Number) int { return cmp.Compare(a.Plugin, b.Plugin) })
	return out
}
