package volume

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/agent/selinux"
)

// takeLabel finds the label that a volume is mounted with, so that nobody goes through
// its files: where its driver can do so (CSIDriver.spec.seLinuxMount, and disks), no
// other pod can have it (ReadWriteOncePod), and all containers that mount it are to have
// one label, whose level the pod names. All else is relabelled file by file (KEP-1710).
func (m *Manager) takeLabel(p *corev1.Pod, v *Volume) error {
	if m.Labels == nil || !v.mountsLabelled() || changesEach(p) {
		return nil
	}
	var labels []string
	for _, o := range optionsOf(p, v.Volume.Name) {
		label := ""
		if o != nil && o.Level != "" {
			l, err := m.Labels(selinux.Options{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level})
			if err != nil {
				return err
			}
			label = l.File
		}
		labels = append(labels, label)
	}
	slices.Sort(labels)
	labels = slices.Compact(labels)
	switch {
	case len(labels) == 0 || labels[0] == "":
		return nil
	case len(labels) > 1:
		return fmt.Errorf("the volume is mounted with one SELinux label, and containers of the pod ask for several, %q: "+
			"give them the same seLinuxOptions, or the pod seLinuxChangePolicy: Recursive", labels)
	}
	v.Label = labels[0]
	return nil
}

// mountsLabelled tells whether the volume can be mounted with a label for this pod alone.
func (v *Volume) mountsLabelled() bool {
	if v.Persistent == nil || v.block() ||
		!slices.Equal(v.Persistent.Spec.AccessModes, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}) {
		return false
	}
	return v.Disk != nil || v.CSI != nil && v.CSI.Spec != nil && ptr.Deref(v.CSI.Spec.SELinuxMount, false)
}

// changesEach tells whether the pod wants labels file by file.
func changesEach(p *corev1.Pod) bool {
	s := p.Spec.SecurityContext
	return s != nil && ptr.Deref(s.SELinuxChangePolicy, "") == corev1.SELinuxChangePolicyRecursive
}

// optionsOf are what the containers ask for that mount a volume, nil for nothing.
func optionsOf(p *corev1.Pod, name string) (out []*corev1.SELinuxOptions) {
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == name }) {
			continue
		}
		var o *corev1.SELinuxOptions
		if s := p.Spec.SecurityContext; s != nil {
			o = s.SELinuxOptions
		}
		if s := c.SecurityContext; s != nil && s.SELinuxOptions != nil {
			o = s.SELinuxOptions
		}
		out = append(out, o)
	}
	return out
}

// labelled adds the label to a mount's options.
func (v *Volume) labelled(options []string) []string {
	if v.Label == "" {
		return options
	}
	return append(slices.Clone(options), selinux.MountOption(v.Label))
}

// Relabel tells whether a runtime has to give the files of a volume a container's label:
// of all that is the pod's and was not mounted with one.
func (m *Manager) Relabel(p *corev1.Pod, name string) bool {
	if m.Labels == nil {
		return false
	}
	v := m.recorded(p.UID, name)
	if v == nil || v.Label != "" {
		return false
	}
	return v.Volume.HostPath == nil && v.Volume.NFS == nil && v.Volume.Image == nil &&
		(v.Persistent == nil || v.Persistent.Spec.HostPath == nil && v.Persistent.Spec.NFS == nil)
}
