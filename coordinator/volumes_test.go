package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Volumes and claims find each other and are kept while they are used, with the
// coordinator's own admission.
func TestVolumes(t *testing.T) {
	c := newRigWith(t, false, fullAdmission)
	t.Run("Protection", c.testProtection)
	t.Run("DefaultClass", c.testDefaultClass)
	t.Run("Reserved", c.testReserved)
	t.Run("Attach", c.testAttach)
	t.Run("Expand", c.testExpand)
}

func (c *rig) volume(t *testing.T, name string, change func(*corev1.PersistentVolume)) {
	t.Helper()
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: name,
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/x"}},
		},
	}
	if change != nil {
		change(v)
	}
	if _, err := c.client.CoreV1().PersistentVolumes().Create(t.Context(), v, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (c *rig) claim(t *testing.T, ns, name string, class *string) {
	t.Helper()
	_, err := c.client.CoreV1().PersistentVolumeClaims(ns).Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: class,
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("100Mi")}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// phases waits until claim and volume are so; "" stands for gone.
func (c *rig) phases(t *testing.T, ns, claim string, want corev1.PersistentVolumeClaimPhase, volume string,
	wantVolume corev1.PersistentVolumePhase) {
	t.Helper()
	within(t, "phases of claim and volume", func() error {
		got, gotVolume := corev1.PersistentVolumeClaimPhase(""), corev1.PersistentVolumePhase("")
		if o, err := c.client.CoreV1().PersistentVolumeClaims(ns).Get(t.Context(), claim,
			metav1.GetOptions{}); err == nil {
			got = o.Status.Phase
		} else if !apierrors.IsNotFound(err) {
			return err
		}
		if o, err := c.client.CoreV1().PersistentVolumes().Get(t.Context(), volume, metav1.GetOptions{}); err == nil {
			gotVolume = o.Status.Phase
		} else if !apierrors.IsNotFound(err) {
			return err
		}
		if got != want || gotVolume != wantVolume {
			return fmt.Errorf("claim is %q, volume is %q", got, gotVolume)
		}
		return nil
	})
}

func (c *rig) testProtection(t *testing.T) { // PV-3, PV-7, PV-12..PV-14, PV-17, PV-34
	ns := c.namespace(t, "protection")
	claims, volumes := c.client.CoreV1().PersistentVolumeClaims(ns), c.client.CoreV1().PersistentVolumes()
	c.volume(t, "kept", nil)
	c.claim(t, ns, "data", ptr.To("kept"))
	c.phases(t, ns, "data", corev1.ClaimBound, "kept", corev1.VolumeBound)
	claim, err := claims.Get(t.Context(), "data", metav1.GetOptions{})
	if err != nil || !slices.Contains(claim.Finalizers, "kubernetes.io/pvc-protection") ||
		claim.Spec.VolumeName != "kept" ||
		claim.Annotations["pv.kubernetes.io/bind-completed"] != "yes" || claim.Status.Capacity.Storage().String() != "1Gi" {
		t.Fatalf("got %+v, %v", claim, err)
	}
	claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("2Gi")
	if _, err := claims.Update(t.Context(), claim, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) ||
		!strings.Contains(err.Error(), "must support resize") {
		t.Errorf("a claim may grow: %v", err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "user"},
		Spec: corev1.PodSpec{
			NodeName: "somewhere", Containers: []corev1.Container{{Name: "c", Image: "i"}},
			Volumes: []corev1.Volume{
				{Name: "v",
					VolumeSource: corev1.VolumeSource{
						PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}},
		},
	}
	within(t, "the pod is made, once its service account is there", func() error {
		_, err := c.client.CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{})
		return err
	})
	for _, err := range []error{claims.Delete(t.Context(), "data", metav1.DeleteOptions{}),
		volumes.Delete(t.Context(), "kept", metav1.DeleteOptions{})} {
		if err != nil {
			t.Fatal(err)
		}
	}
	c.phases(t, ns, "data", corev1.ClaimBound, "kept", corev1.VolumeBound)
	if err := c.client.CoreV1().Pods(ns).Delete(t.Context(),
		"user", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
		t.Fatal(err)
	}
	c.phases(t, ns, "data", "", "kept", "")
}

func (c *rig) testDefaultClass(t *testing.T) { // PV-76, PV-81, DYN-1
	ns := c.namespace(t, "classes")
	claims := c.client.CoreV1().PersistentVolumeClaims(ns)
	c.claim(t, ns, "early", nil)
	_, err := c.client.StorageV1().StorageClasses().Create(t.Context(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "standard",
			Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}},
		Provisioner: "example.com/disk",
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"early", "late"} {
		if name == "late" {
			c.claim(t, ns, name, nil)
		}
		within(t, "the claim has the class and its provisioner is asked", func() error {
			o, err := claims.Get(t.Context(), name, metav1.GetOptions{})
			if err == nil &&
				(ptr.Deref(o.Spec.StorageClassName, "") != "standard" ||
					o.Annotations["volume.kubernetes.io/storage-provisioner"] != "example.com/disk") {
				err = errors.New("not yet")
			}
			return err
		})
	}
}

func (c *rig) testReserved(t *testing.T) { // PV-28, PV-30, PV-32
	ns := c.namespace(t, "reserved")
	c.volume(t, "for-b", func(v *corev1.PersistentVolume) {
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: ns, Name: "b"}
	})
	c.claim(t, ns, "a", ptr.To("for-b"))
	c.phases(t, ns, "a", corev1.ClaimPending, "for-b", corev1.VolumeAvailable)
	c.claim(t, ns, "b", ptr.To("for-b"))
	c.phases(t, ns, "b", corev1.ClaimBound, "for-b", corev1.VolumeBound)
	if err := c.client.CoreV1().PersistentVolumeClaims(ns).Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.phases(t, ns, "b", "", "for-b", corev1.VolumeReleased)
}

// A claim whose class allows it asks for more, and is told whom it waits for.
func (c *rig) testExpand(t *testing.T) { // PV-33, PV-36, PV-38
	ns := c.namespace(t, "expand")
	claims := c.client.CoreV1().PersistentVolumeClaims(ns)
	_, err := c.client.StorageV1().StorageClasses().Create(t.Context(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "grows"}, Provisioner: "example.com/disk", AllowVolumeExpansion: ptr.To(true),
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.volume(t, "grows", func(v *corev1.PersistentVolume) {
		v.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{
			CSI: &corev1.CSIPersistentVolumeSource{Driver: "expand.example.com", VolumeHandle: "vol-1"}}
	})
	c.claim(t, ns, "data", ptr.To("grows"))
	c.phases(t, ns, "data", corev1.ClaimBound, "grows", corev1.VolumeBound)
	within(t, "the claim asks for more, once admission knows the class", func() error {
		claim, err := claims.Get(t.Context(), "data", metav1.GetOptions{})
		if err != nil {
			return err
		}
		claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("2Gi")
		_, err = claims.Update(t.Context(), claim, metav1.UpdateOptions{})
		return err
	})
	within(t, "it is told that a resizer is waited for", func() error {
		list, err := c.client.CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.InvolvedObject.Name == "data" && e.Reason == "ExternalExpanding" && e.Type == corev1.EventTypeNormal &&
				e.Message == "waiting for an external controller to expand this PVC" {
				return nil
			}
		}
		return fmt.Errorf("events: %+v", list.Items)
	})
}
