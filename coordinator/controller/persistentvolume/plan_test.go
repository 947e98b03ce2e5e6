package persistentvolume

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	storagehelper "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"
)

func claim(change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "c-uid"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: ptr.To(""),
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("5Gi")}},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func volume(name, size string, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/x"}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
	}
	for _, f := range change {
		f(v)
	}
	return v
}

func classed(name string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &name }
}

func named(volume string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = volume }
}

func completed(c *corev1.PersistentVolumeClaim) {
	metav1.SetMetaDataAnnotation(&c.ObjectMeta, storagehelper.AnnBindCompleted, "yes")
}

func block(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) }

func reserved(name string, uid types.UID) func(*corev1.PersistentVolume) {
	return func(v *corev1.PersistentVolume) {
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: name, UID: uid}
	}
}

func class(name, provisioner string, change ...func(*storagev1.StorageClass)) *storagev1.StorageClass {
	c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingImmediate)}
	for _, f := range change {
		f(c)
	}
	return c
}

func delayed(c *storagev1.StorageClass) {
	c.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
}

func byDefault(age time.Duration) func(*storagev1.StorageClass) {
	return func(c *storagev1.StorageClass) {
		c.Annotations = map[string]string{defaultClass: "true"}
		c.CreationTimestamp = metav1.NewTime(time.Unix(1_000_000, 0).Add(-age))
	}
}

// TestPlanClaim covers PV-3..PV-10, PV-28..PV-32, PV-75..PV-81, PV-93, SC-12, SC-13.
func TestPlanClaim(t *testing.T) {
	wide := func(v *corev1.PersistentVolume) {
		v.Spec.AccessModes = append(v.Spec.AccessModes, corev1.ReadOnlyMany)
	}
	for _, c := range []struct {
		name    string
		claim   *corev1.PersistentVolumeClaim
		volumes []*corev1.PersistentVolume
		classes []*storagev1.StorageClass
		pods    []string
		// want is the volume to bind, the class to give, the provisioner to ask or
		// the phase; then the event.
		want, event string
	}{
		{"smallest that fits", claim(),
			[]*corev1.PersistentVolume{volume("small", "1Gi"), volume("big", "50Gi"), volume("fits", "10Gi")},
			nil, nil, "fits", ""},
		{"fewest modes", claim(), []*corev1.PersistentVolume{volume("wide", "5Gi", wide), volume("narrow", "50Gi")},
			nil, nil, "narrow", ""},
		{"none", claim(), []*corev1.PersistentVolume{volume("small", "1Gi")}, nil, nil, "Pending",
			"FailedBinding: no persistent volumes available for this claim and no storage class is set"},
		{"reserved for it", claim(),
			[]*corev1.PersistentVolume{volume("free", "5Gi"), volume("mine", "50Gi", reserved("c", ""))},
			nil, nil, "mine", ""},
		{"reserved for another", claim(), []*corev1.PersistentVolume{volume("theirs", "5Gi", reserved("x", ""))},
			nil, nil, "Pending",
			"FailedBinding: no persistent volumes available for this claim and no storage class is set"},
		{"block", claim(block), []*corev1.PersistentVolume{volume("files", "5Gi")}, nil, nil, "Pending",
			"FailedBinding: no persistent volumes available for this claim and no storage class is set"},
		{"named", claim(named("v")), []*corev1.PersistentVolume{volume("v", "50Gi")}, nil, nil, "v", ""},
		{"named, not there", claim(named("v")), nil, nil, nil, "Pending", ""},
		{"named, too small", claim(named("v")), []*corev1.PersistentVolume{volume("v", "1Gi")}, nil, nil, "Pending",
			`VolumeMismatch: Cannot bind to requested volume "v": requested PV is too small`},
		{"named, of another class", claim(named("v"), classed("x")),
			[]*corev1.PersistentVolume{volume("v", "5Gi")}, nil, nil, "Pending",
			`VolumeMismatch: Cannot bind to requested volume "v": storageClassName does not match`},
		{"named, taken", claim(named("v")), []*corev1.PersistentVolume{volume("v", "5Gi", reserved("x", "x-uid"))},
			nil, nil, "Pending",
			`FailedBinding: volume "v" already bound to a different claim.`},
		{"bound", claim(named("v"), completed), []*corev1.PersistentVolume{volume("v", "5Gi", reserved("c", "c-uid"))},
			nil, nil, "v", ""},
		{"lost", claim(named("v"), completed), nil, nil, nil, "Lost", "ClaimLost: Bound claim has lost its PersistentVolume. Data on the volume is lost!"},
		{"misbound", claim(named("v"), completed),
			[]*corev1.PersistentVolume{volume("v", "5Gi", reserved("c", "older"))}, nil, nil, "Lost",
			"ClaimMisbound: Two claims are bound to the same volume, this one is bound incorrectly"},
		{"no class, a default", claim(func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = nil }), nil,
			[]*storagev1.StorageClass{class("old", "p", byDefault(2)), class("new", "p", byDefault(1)),
				class("other", "p")}, nil, "new", ""},
		{"class empty, a default", claim(), nil, []*storagev1.StorageClass{class("new", "p", byDefault(1))}, nil, "Pending",
			"FailedBinding: no persistent volumes available for this claim and no storage class is set"},
		{"provisioned", claim(classed("x")), nil, []*storagev1.StorageClass{class("x", "example.com/p")}, nil, "example.com/p",
			"ExternalProvisioning: Waiting for a volume to be created either by the external provisioner 'example.com/p' or manually by the system administrator. " +
				"If volume creation is delayed, please verify that the provisioner is running and correctly registered."},
		{"unknown class", claim(classed("x")), nil, nil, nil, "", `ProvisioningFailed: storageclass.storage.k8s.io "x" not found`},
		{"by hand", claim(classed("x")), nil, []*storagev1.StorageClass{class("x", "kubernetes.io/no-provisioner")},
			nil, "",
			"ProvisioningFailed: no volume plugin matched name: kubernetes.io/no-provisioner"},
		{"waits", claim(classed("x")), nil, []*storagev1.StorageClass{class("x", "p", delayed)}, nil, "Pending",
			"WaitForFirstConsumer: waiting for first consumer to be created before binding"},
		{"waits for pods", claim(classed("x")), nil, []*storagev1.StorageClass{class("x", "p", delayed)},
			[]string{"a", "b"}, "Pending",
			"WaitForPodScheduled: waiting for pods a,b to be scheduled"},
		{"node chosen", claim(classed("x"), func(c *corev1.PersistentVolumeClaim) {
			c.Annotations = map[string]string{storagehelper.AnnSelectedNode: "n"}
		}), nil, []*storagev1.StorageClass{class("x", "kubernetes.io/none", delayed)}, nil, "", "ProvisioningFailed: no volume plugin matched name: kubernetes.io/none"},
	} {
		t.Run(c.name, func(t *testing.T) {
			step, err := planClaim(c.claim,
				&view{Volumes: c.volumes, Classes: c.classes, Waiting: func() []string { return c.pods }})
			if err != nil {
				t.Fatal(err)
			}
			got := string(step.Phase) + step.Class + step.Provisioner
			if step.Bind != nil {
				got += step.Bind.Name
			}
			if e := text(step.Event); got != c.want || e != c.event {
				t.Errorf("got %q, %q", got, e)
			}
		})
	}
}

func text(e *event) string {
	if e == nil {
		return ""
	}
	return e.reason + ": " + e.message
}

// TestPlanVolume covers PV-9, PV-13, PV-17, PV-18, PV-23.
func TestPlanVolume(t *testing.T) {
	policy := func(p corev1.PersistentVolumeReclaimPolicy) func(*corev1.PersistentVolume) {
		return func(v *corev1.PersistentVolume) { v.Spec.PersistentVolumeReclaimPolicy = p }
	}
	driver := func(v *corev1.PersistentVolume) {
		v.Annotations = map[string]string{storagehelper.AnnDynamicallyProvisioned: "d.example.com"}
	}
	disk := func(v *corev1.PersistentVolume) {
		v.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{FC: &corev1.FCVolumeSource{}}
	}
	mine := reserved("c", "c-uid")
	for _, c := range []struct {
		name   string
		volume *corev1.PersistentVolume
		claim  *corev1.PersistentVolumeClaim
		want   volumeStep
	}{
		{"free", volume("v", "5Gi"), nil, volumeStep{Phase: corev1.VolumeAvailable}},
		{"reserved", volume("v", "5Gi", reserved("c", "")), nil, volumeStep{Phase: corev1.VolumeAvailable, Claim: true}},
		{"bound", volume("v", "5Gi", mine), claim(named("v")), volumeStep{Phase: corev1.VolumeBound}},
		{"half bound", volume("v", "5Gi", mine), claim(), volumeStep{Claim: true}},
		{"bound elsewhere", volume("v", "5Gi", mine), claim(named("w")), volumeStep{Unbind: true}},
		{"made in vain", volume("v", "5Gi", mine, driver, policy(corev1.PersistentVolumeReclaimDelete)),
			claim(named("w")), volumeStep{Phase: corev1.VolumeReleased}},
		{"retained", volume("v", "5Gi", mine), nil, volumeStep{Phase: corev1.VolumeReleased}},
		{"deleted by its driver", volume("v", "5Gi", mine, driver, policy(corev1.PersistentVolumeReclaimDelete)), nil,
			volumeStep{Phase: corev1.VolumeReleased}},
		{"deleted by nobody", volume("v", "5Gi", mine, policy(corev1.PersistentVolumeReclaimDelete)), nil, volumeStep{
			Phase: corev1.VolumeFailed, Message: `error getting deleter volume plugin for volume "v": no deletable volume plugin matched`,
			Event: warning("VolumeFailedDelete", `error getting deleter volume plugin for volume "v": no deletable volume plugin matched`),
		}},
		{"recycled", volume("v", "5Gi", mine, policy(corev1.PersistentVolumeReclaimRecycle)), nil,
			volumeStep{Phase: corev1.VolumeReleased, Recycle: true}},
		{"recycled by nobody", volume("v", "5Gi", mine, disk, policy(corev1.PersistentVolumeReclaimRecycle)), nil,
			volumeStep{
				Phase: corev1.VolumeFailed, Message: "No recycler plugin found for the volume!",
				Event: warning("VolumeFailedRecycle", "No recycler plugin found for the volume!"),
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := planVolume(c.volume, c.claim)
			if g, w := text(got.Event), text(c.want.Event); g != w {
				t.Errorf("got event %q, want %q", g, w)
			}
			got.Event, c.want.Event = nil, nil
			if got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// TestSizeBeforeResize: a claim that is bound, to a volume that has grown before its file
// system, shows the size of that: else no node would make it larger.
func TestSizeBeforeResize(t *testing.T) {
	for annotation, want := range map[string]string{"": "5Gi", "1Gi": "1Gi", "nonsense": "5Gi"} {
		pv := &corev1.PersistentVolume{}
		pv.Annotations = map[string]string{preResize: annotation}
		pv.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("5Gi")}
		got := claimStatus(&corev1.PersistentVolumeClaim{}, corev1.ClaimBound, pv).Capacity[corev1.ResourceStorage]
		if got.String() != want {
			t.Errorf("with %q: %s", annotation, got.String())
		}
	}
}
