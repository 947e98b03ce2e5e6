// Package migration shows volumes of clouds, which Kubernetes once made and mounted
// itself, as those of the CSI drivers that have taken them over. Whoever is to attach,
// count, place or mount a PersistentVolume looks at it through Volume.
package migration

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	csitranslation "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"
)

var translator csitranslation.CSITranslator

// Driver is the driver that has taken a plugin of Kubernetes over, by the name that
// classes and volumes call it ("kubernetes.io/aws-ebs"); "" for none.
func Driver(plugin string) string {
	name, err := translator.GetCSINameFromInTreeName(plugin)
	if err != nil {
		return "" // it has no other error
	}
	return name
}

// Plugin is the name of the plugin that a volume was once for; "" where no driver has
// taken it over.
func Plugin(pv *corev1.PersistentVolume) string {
	if pv.Spec.CSI != nil {
		return ""
	}
	name, err := translator.GetInTreePluginNameFromSpec(pv, nil)
	if err != nil {
		return "" // it has no other error
	}
	return name
}

// Volume is the volume as its driver knows it: a changed copy of one that Plugin names,
// and any other as it is.
func Volume(pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	plugin := Plugin(pv)
	if plugin == "" {
		return pv, nil
	}
	out, err := translator.TranslateInTreePVToCSI(klog.Background(), pv)
	if err != nil {
		return nil, fmt.Errorf("show volume %s of %s as one of driver %s: %w", pv.Name, plugin, Driver(plugin), err)
	}
	return out, nil
}
