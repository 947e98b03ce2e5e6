package main

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

const attachedName = "kubernetes.io/csi/attach.example.com^vol-1"

// A volume of a driver goes to its pod's node and away again, with the test in the
// places of the driver's attacher and of the agent.
func (c *rig) testAttach(t *testing.T) {
	ns, nodes := c.namespace(t, "attach"), c.client.CoreV1().Nodes()
	attachments := c.client.StorageV1().VolumeAttachments()
	if _, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "attach-1"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.volume(t, "attached", func(v *corev1.PersistentVolume) {
		v.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{
			CSI: &corev1.CSIPersistentVolumeSource{Driver: "attach.example.com", VolumeHandle: "vol-1"}}
	})
	c.claim(t, ns, "data", ptr.To("attached"))
	c.phases(t, ns, "data", corev1.ClaimBound, "attached", corev1.VolumeBound)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "user"},
		Spec: corev1.PodSpec{
			NodeName: "attach-1", Containers: []corev1.Container{{Name: "c", Image: "i"}},
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}},
		},
	}
	within(t, "the pod is made, once its service account is there", func() error {
		_, err := c.client.CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{})
		return err
	})

	attachment := func() (*storagev1.VolumeAttachment, error) {
		list, err := attachments.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for _, va := range list.Items {
			if va.Spec.Attacher == "attach.example.com" && va.Spec.NodeName == "attach-1" {
				return &va, nil
			}
		}
		return nil, apierrors.NewNotFound(storagev1.Resource("volumeattachments"), "of attach-1")
	}
	var va *storagev1.VolumeAttachment
	within(t, "the attacher is asked", func() (err error) {
		va, err = attachment()
		return err
	})
	va.Finalizers = []string{"external-attacher/attach-example-com"}
	va, err := attachments.Update(t.Context(), va, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	va.Status.Attached = true
	if _, err := attachments.UpdateStatus(t.Context(), va, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	listed := func(want int) func() error {
		return func() error {
			node, err := nodes.Get(t.Context(), "attach-1", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if got := node.Status.VolumesAttached; len(got) != want || want == 1 && got[0].Name != attachedName {
				return fmt.Errorf("attached: %v", got)
			}
			return nil
		}
	}
	within(t, "the node is told", listed(1))
	within(t, "the pod is told", func() error {
		events, err := c.client.CoreV1().Events(ns).List(t.Context(),
			metav1.ListOptions{FieldSelector: "reason=SuccessfulAttachVolume,involvedObject.name=user"})
		if err == nil && len(events.Items) == 0 {
			err = fmt.Errorf("no event")
		}
		return err
	})

	inUse := func(text string) {
		t.Helper()
		if _, err := nodes.Patch(t.Context(), "attach-1", types.MergePatchType, []byte(
			`{"status":{"volumesInUse":[`+text+`]}}`), metav1.PatchOptions{}, "status"); err != nil {
			t.Fatal(err)
		}
	}
	inUse(`"` + attachedName + `"`)
	if err := c.client.CoreV1().Pods(ns).Delete(t.Context(), "user",
		metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}); err != nil {
		t.Fatal(err)
	}
	// It stays while the node has it: what is asked for later is done, and it is there.
	c.volume(t, "later", nil)
	c.claim(t, ns, "later", ptr.To("later"))
	c.phases(t, ns, "later", corev1.ClaimBound, "later", corev1.VolumeBound)
	if va, err := attachment(); err != nil || va.DeletionTimestamp != nil {
		t.Errorf("detached while it is in use: %+v, %v", va, err)
	}
	inUse("")
	within(t, "the attacher is asked to detach", func() error {
		va, err = attachment()
		if err == nil && va.DeletionTimestamp == nil {
			err = fmt.Errorf("it is not")
		}
		return err
	})
	if err := listed(0)(); err != nil {
		t.Errorf("the node may still use it: %v", err)
	}
	va.Finalizers = nil
	if _, err := attachments.Update(t.Context(), va, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	within(t, "it is detached", func() error {
		if _, err := attachment(); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there, %w", err)
		}
		return nil
	})
}
