package quota

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// known is a factory whose informers, never started, hold objects.
func known(t *testing.T, objects ...runtime.Object) informers.SharedInformerFactory {
	t.Helper()
	f := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	for _, obj := range objects {
		var of cache.SharedIndexInformer
		switch obj.(type) {
		case *resourcev1.DeviceClass:
			of = f.Resource().V1().DeviceClasses().Informer()
		case *resourcev1.ResourceClaim:
			of = f.Resource().V1().ResourceClaims().Informer()
		case *corev1.Pod:
			of = f.Core().V1().Pods().Informer()
		}
		if err := of.GetStore().Add(obj); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func exactly(class string, n int64) resourcev1.DeviceRequest {
	return resourcev1.DeviceRequest{Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: class,
		AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: n}}
}

func claimOf(requests ...resourcev1.DeviceRequest) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: requests}}}
}

// What claims for devices take, by class and by the class's extended resources (RQ-10, KEP-5004).
func TestDeviceUsage(t *testing.T) {
	const one = "count/resourceclaims.resource.k8s.io"
	card := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"},
		Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: ptr.To("example.com/card")}}
	mixed := claimOf(exactly("gpu", 2), resourcev1.DeviceRequest{FirstAvailable: []resourcev1.DeviceSubRequest{
		{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1},
		{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 3},
		{DeviceClassName: "nic", AllocationMode: resourcev1.DeviceAllocationModeAll},
	}})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "1"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
			Requests: list("example.com/card", "1", "deviceclass.resource.kubernetes.io/gpu", "1")}}}}}
	ended := pod.DeepCopy()
	ended.Status.Phase = corev1.PodSucceeded
	told, toldOther := pod.DeepCopy(), pod.DeepCopy()
	told.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "c"}
	toldOther.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "b"}
	made := func(name string, uid types.UID, second int64) *resourcev1.ResourceClaim {
		c := claimOf(exactly("gpu", 4))
		c.Name, c.CreationTimestamp = name, metav1.NewTime(time.Unix(second, 0))
		c.Annotations = map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}
		c.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Pod", Name: "p", UID: uid, Controller: ptr.To(true)}}
		return c
	}
	unmarked := made("c", "1", 2)
	unmarked.Annotations = nil
	four := func(extended string) corev1.ResourceList {
		return list(one, "1", "gpu.deviceclass.resource.k8s.io/devices", "4",
			"requests.deviceclass.resource.kubernetes.io/gpu", extended, "requests.example.com/card", extended)
	}
	for name, tt := range map[string]struct {
		claim  *resourcev1.ResourceClaim
		others []runtime.Object
		want   corev1.ResourceList
	}{
		"the worst of alternatives": {mixed, nil, list(one, "1",
			"gpu.deviceclass.resource.k8s.io/devices", "5", "nic.deviceclass.resource.k8s.io/devices", "32",
			"requests.deviceclass.resource.kubernetes.io/gpu", "5", "requests.deviceclass.resource.kubernetes.io/nic", "32")},
		"a class's extended resource": {claimOf(exactly("gpu", 4)), []runtime.Object{card}, four("4")},
		"what the pod does not take":  {made("c", "1", 2), []runtime.Object{card, pod}, four("3")},
		"as the pod says":             {made("c", "1", 2), []runtime.Object{card, told, made("b", "1", 1)}, four("3")},
		"the pod says another":        {made("c", "1", 2), []runtime.Object{card, toldOther}, four("4")},
		"not the first for the pod":   {made("c", "1", 2), []runtime.Object{card, pod, made("b", "1", 1)}, four("4")},
		"first by name":               {made("c", "1", 2), []runtime.Object{card, pod, made("d", "1", 2)}, four("3")},
		"another pod's is older":      {made("c", "1", 2), []runtime.Object{card, pod, made("b", "2", 1)}, four("3")},
		"an earlier pod's":            {made("c", "0", 2), []runtime.Object{card, pod}, four("4")},
		"not made by the scheduler":   {unmarked, []runtime.Object{card, pod}, four("4")},
		"the pod has ended":           {made("c", "1", 2), []runtime.Object{card, ended}, four("4")},
	} {
		got, err := newDevices(nil, known(t, tt.others...)).Usage(tt.claim)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		same(t, name, got, tt.want)
	}
}
