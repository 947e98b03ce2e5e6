package migration

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestVolume(t *testing.T) {
	for _, c := range []struct {
		plugin, driver, handle string
		source                 corev1.PersistentVolumeSource
	}{
		{"kubernetes.io/aws-ebs", "ebs.csi.aws.com", "vol-1", corev1.PersistentVolumeSource{
			AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://us-east-1a/vol-1"}}},
		{"kubernetes.io/gce-pd", "pd.csi.storage.gke.io", "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d",
			corev1.PersistentVolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "d"}}},
		{"kubernetes.io/azure-disk", "disk.csi.azure.com", "/a/d", corev1.PersistentVolumeSource{
			AzureDisk: &corev1.AzureDiskVolumeSource{DiskName: "d", DataDiskURI: "/a/d"}}},
		{"kubernetes.io/azure-file", "file.csi.azure.com", "#s#share#v#ns", corev1.PersistentVolumeSource{
			AzureFile: &corev1.AzureFilePersistentVolumeSource{SecretName: "azure-storage-account-s-secret",
				ShareName: "share", SecretNamespace: ptr.To("ns")}}},
		{"kubernetes.io/cinder", "cinder.csi.openstack.org", "c", corev1.PersistentVolumeSource{
			Cinder: &corev1.CinderPersistentVolumeSource{VolumeID: "c"}}},
		{"kubernetes.io/vsphere-volume", "csi.vsphere.vmware.com", "[ds] v.vmdk", corev1.PersistentVolumeSource{
			VsphereVolume: &corev1.VsphereVirtualDiskVolumeSource{VolumePath: "[ds] v.vmdk"}}},
		{"kubernetes.io/portworx-volume", "pxd.portworx.com", "p", corev1.PersistentVolumeSource{
			PortworxVolume: &corev1.PortworxVolumeSource{VolumeID: "p"}}},
	} {
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource: c.source, ClaimRef: &corev1.ObjectReference{Namespace: "ns"}}}
		before := pv.DeepCopy()
		got, err := Volume(pv)
		if err != nil || got.Spec.CSI == nil || got.Spec.CSI.Driver != c.driver || got.Spec.CSI.VolumeHandle != c.handle {
			t.Errorf("%s: %+v, %v", c.plugin, got, err)
			continue
		}
		if Plugin(pv) != c.plugin || Driver(c.plugin) != c.driver {
			t.Errorf("%s: plugin %q, driver %q", c.plugin, Plugin(pv), Driver(c.plugin))
		}
		if pv.Spec.CSI != nil || pv.String() != before.String() {
			t.Errorf("%s: the volume itself was changed", c.plugin)
		}
	}
}

func TestVolumeOfOthers(t *testing.T) {
	for _, pv := range []*corev1.PersistentVolume{
		{},
		{Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
			NFS: &corev1.NFSVolumeSource{}}}},
		{Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
			CSI: &corev1.CSIPersistentVolumeSource{Driver: "ebs.csi.aws.com"}}}},
	} {
		if got, err := Volume(pv); got != pv || err != nil || Plugin(pv) != "" {
			t.Errorf("%v: %v, %v", pv, got, err)
		}
	}
	for _, plugin := range []string{"", "kubernetes.io/no-provisioner", "kubernetes.io/rbd", "ebs.csi.aws.com"} {
		if got := Driver(plugin); got != "" {
			t.Errorf("%s: %s", plugin, got)
		}
	}
}

func TestVolumeThatCannotBeShown(t *testing.T) {
	pv := &corev1.PersistentVolume{}
	pv.Spec.AWSElasticBlockStore = &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "aws://z/x"}
	if got, err := Volume(pv); err == nil {
		t.Errorf("got %v", got)
	}
}
