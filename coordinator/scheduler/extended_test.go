package scheduler

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
)

const gpuResource = "example.com/gpu"

// asks has the pod's container ask for an extended resource.
func asks(name, amount string) podOpt {
	return func(p *corev1.Pod) {
		list := corev1.ResourceList{corev1.ResourceName(name): resource.MustParse(amount)}
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list, Limits: list}
	}
}

// standsFor has the class "gpu" stand for the extended resource.
func (l *deviceLab) standsFor(name string) {
	l.Helper()
	c, err := l.client.ResourceV1().DeviceClasses().Get(l.Context(), "gpu", metav1.GetOptions{})
	if err != nil {
		l.Fatal(err)
	}
	c.Spec.ExtendedResourceName = ptr.To(name)
	if _, err := l.client.ResourceV1().DeviceClasses().Update(l.Context(), c, metav1.UpdateOptions{}); err != nil {
		l.Fatal(err)
	}
}

func (l *deviceLab) create(p *corev1.Pod) {
	l.Helper()
	if _, err := l.client.CoreV1().Pods("default").Create(l.Context(), p, metav1.CreateOptions{}); err != nil {
		l.Fatal(err)
	}
}

// claimOf is the claim that the status of a pod tells of.
func (l *deviceLab) claimOf(pod string) (*resourcev1.ResourceClaim, *corev1.PodExtendedResourceClaimStatus) {
	l.Helper()
	p, err := l.client.CoreV1().Pods("default").Get(l.Context(), pod, metav1.GetOptions{})
	if err != nil {
		l.Fatal(err)
	}
	s := p.Status.ExtendedResourceClaimStatus
	if s == nil {
		return nil, nil
	}
	return l.get(s.ResourceClaimName), s
}

// A pod that asks for an extended resource as it always did gets devices where a class
// stands for it: the scheduler makes the claim and tells for whom it is.
func TestExtendedResourceByClaim(t *testing.T) {
	l := newDeviceLab(t)
	l.devices("n1", nil, "a", "b", "c")
	l.create(apiPod("p", asks(gpuResource, "2")))
	l.refused("p", "2 Insufficient "+gpuResource)
	l.standsFor(gpuResource)
	if node := l.bound("p"); node != "n1" {
		t.Errorf("on %s", node)
	}
	c, s := l.claimOf("p")
	if c == nil {
		t.Fatal("the pod's status tells of no claim")
	}
	if !strings.HasPrefix(c.Name, "p-extended-resources-") ||
		c.Annotations[resourcev1.ExtendedResourceClaimAnnotation] != "true" || len(c.OwnerReferences) != 1 {
		t.Errorf("claim %+v", c.ObjectMeta)
	}
	want := []corev1.ContainerExtendedResourceRequest{
		{ContainerName: "c", ResourceName: gpuResource, RequestName: "container-0-request-0"}}
	if !slices.Equal(s.RequestMappings, want) {
		t.Errorf("mappings %+v", s.RequestMappings)
	}
	if a := c.Status.Allocation; a == nil || len(a.Devices.Results) != 2 {
		t.Fatalf("allocation %+v", a)
	}
	if r := c.Status.ReservedFor; len(r) != 1 || r[0].Name != "p" {
		t.Errorf("reserved for %v", r)
	}
	// One device is left, of three: by the name that each class has without being asked.
	l.create(apiPod("next", asks("deviceclass.resource.kubernetes.io/gpu", "2")))
	l.refused("next", "2 cannot allocate all claims")
	l.create(apiPod("last", asks("deviceclass.resource.kubernetes.io/gpu", "1")))
	l.bound("last")
}

// What a node has itself is taken first, as before there were classes.
func TestExtendedResourceOfTheNode(t *testing.T) {
	l := newDeviceLab(t)
	l.standsFor(gpuResource)
	n, err := l.client.CoreV1().Nodes().Get(t.Context(), "n2", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.Status.Capacity[gpuResource] = resource.MustParse("1")
	n.Status.Allocatable[gpuResource] = resource.MustParse("1")
	if _, err := l.client.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	l.create(apiPod("p", asks(gpuResource, "1")))
	if node := l.bound("p"); node != "n2" {
		t.Errorf("on %s", node)
	}
	if c, _ := l.claimOf("p"); c != nil {
		t.Errorf("claim %s was made", c.Name)
	}
	l.create(apiPod("second", asks(gpuResource, "1")))
	l.refused("second", "1 Insufficient "+gpuResource+", 1 cannot allocate all claims")
	l.devices("n1", nil, "a")
	if node := l.bound("second"); node != "n1" {
		t.Errorf("second on %s", node)
	}
}

// A claim of an attempt that failed is in the way of nothing: it goes, and another is made.
func TestExtendedResourceClaimLeftBehind(t *testing.T) {
	l := newDeviceLab(t)
	l.standsFor(gpuResource)
	gated := apiPod("p", asks(gpuResource, "1"))
	gated.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/wait"}}
	l.create(gated)
	p, err := l.client.CoreV1().Pods("default").Get(t.Context(), "p", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	left, err := l.client.ResourceV1().ResourceClaims("default").Create(t.Context(), &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: "left", Finalizers: []string{resourcev1.Finalizer},
			Annotations: map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"},
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "Pod", Name: "p", UID: p.UID, Controller: ptr.To(true)}}},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu"}}}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l.devices("n1", nil, "a")
	// Its status may be written meanwhile.
	if err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		p, err := l.client.CoreV1().Pods("default").Get(t.Context(), "p", metav1.GetOptions{})
		if err != nil {
			return err
		}
		p.Spec.SchedulingGates = nil
		_, err = l.client.CoreV1().Pods("default").Update(t.Context(), p, metav1.UpdateOptions{})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	l.bound("p")
	if c, _ := l.claimOf("p"); c == nil || c.UID == left.UID {
		t.Errorf("the pod has %+v", c)
	}
	l.eventually("the old claim gone", func() error {
		_, err := l.client.ResourceV1().ResourceClaims("default").Get(t.Context(), "left", metav1.GetOptions{})
		if err == nil {
			return errors.New("it is there")
		}
		return nil
	})
}

// Pods that come at once never share a device.
func TestExtendedResourcesAtOnce(t *testing.T) {
	l := newDeviceLab(t)
	l.standsFor(gpuResource)
	l.devices("n1", nil, "a", "b", "c", "d")
	l.devices("n2", nil, "a", "b", "c", "d")
	for i := range 10 {
		l.create(apiPod(fmt.Sprint("p", i), asks(gpuResource, "1")))
	}
	taken := map[string]string{}
	l.eventually("eight of ten bound", func() error {
		clear(taken)
		for i := range 10 {
			c, _ := l.claimOf(fmt.Sprint("p", i))
			if c == nil || c.Status.Allocation == nil {
				continue
			}
			r := c.Status.Allocation.Devices.Results[0]
			if other := taken[r.Pool+r.Device]; other != "" {
				t.Fatalf("%s and %s have %s of %s", other, c.Name, r.Device, r.Pool)
			}
			taken[r.Pool+r.Device] = c.Name
		}
		if len(taken) < 8 {
			return fmt.Errorf("%d so far", len(taken))
		}
		return nil
	})
}

// A pod that cannot be bound after all leaves no claim.
func TestExtendedResourceUndone(t *testing.T) {
	l := newDeviceLab(t)
	l.standsFor(gpuResource)
	// The device is never made ready: the pod waits in its binding.
	l.devices("n1", func(d *resourcev1.Device) {
		d.BindingConditions, d.BindingFailureConditions = []string{"example.com/ready"}, []string{"example.com/broken"}
	}, "a")
	l.create(apiPod("p", asks(gpuResource, "1")))
	var c *resourcev1.ResourceClaim
	l.eventually("a claim with devices", func() error {
		if c, _ = l.claimOf("p"); c == nil || c.Status.Allocation == nil {
			return errors.New("none")
		}
		return nil
	})
	r := c.Status.Allocation.Devices.Results[0]
	c.Status.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: r.Driver, Pool: r.Pool, Device: r.Device,
		Conditions: []metav1.Condition{{Type: "example.com/broken", Status: metav1.ConditionTrue, Reason: "Burnt",
			LastTransitionTime: metav1.NewTime(time.Now())}}}}
	if _, err := l.client.ResourceV1().ResourceClaims("default").UpdateStatus(t.Context(), c,
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	l.eventually("the claim gone", func() error {
		if _, err := l.client.ResourceV1().ResourceClaims("default").Get(t.Context(), c.Name,
			metav1.GetOptions{}); err == nil {
			return errors.New("it is there")
		}
		return nil
	})
}
