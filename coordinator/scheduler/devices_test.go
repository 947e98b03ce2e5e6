package scheduler

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
)

const gpuDriver = "gpu.example.com"

// deviceLab is an API server and a scheduler, two nodes and their devices.
type deviceLab struct {
	*testing.T
	client kubernetes.Interface
}

func newDeviceLab(t *testing.T) *deviceLab {
	l := &deviceLab{T: t}
	l.client, _ = inProcess(t)
	for _, n := range []string{"n1", "n2"} {
		readyNode(t, l.client, testNode(n, "8", "8Gi"))
	}
	_, err := l.client.ResourceV1().DeviceClasses().Create(t.Context(), &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu"},
		Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{{
			CEL: &resourcev1.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", gpuDriver)}}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// devices publishes what a node has.
func (l *deviceLab) devices(node string, change func(*resourcev1.Device), names ...string) {
	l.Helper()
	s := &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec: resourcev1.ResourceSliceSpec{Driver: gpuDriver, NodeName: &node,
			Pool: resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1}},
	}
	for _, n := range names {
		d := resourcev1.Device{Name: n}
		if change != nil {
			change(&d)
		}
		s.Spec.Devices = append(s.Spec.Devices, d)
	}
	if _, err := l.client.ResourceV1().ResourceSlices().Create(l.Context(), s, metav1.CreateOptions{}); err != nil {
		l.Fatal(err)
	}
}

func (l *deviceLab) claim(name, class string) {
	l.Helper()
	_, err := l.client.ResourceV1().ResourceClaims("default").Create(l.Context(), &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: class}}}}},
	}, metav1.CreateOptions{})
	if err != nil {
		l.Fatal(err)
	}
}

// pod has a claim for its device.
func (l *deviceLab) pod(name, claim string, opts ...podOpt) {
	l.Helper()
	p := apiPod(name, opts...)
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "d", ResourceClaimName: &claim}}
	p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "d"}}
	if _, err := l.client.CoreV1().Pods("default").Create(l.Context(), p, metav1.CreateOptions{}); err != nil {
		l.Fatal(err)
	}
}

func (l *deviceLab) eventually(what string, try func() error) {
	l.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			l.Fatalf("not in time: %s: %v", what, err)
		}
	}
}

func (l *deviceLab) bound(pod string) (node string) {
	l.Helper()
	l.eventually(pod+" bound", func() error {
		p, err := l.client.CoreV1().Pods("default").Get(l.Context(), pod, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if node = p.Spec.NodeName; node == "" {
			return fmt.Errorf("conditions %v", p.Status.Conditions)
		}
		return nil
	})
	return node
}

func (l *deviceLab) refused(pod, message string) {
	l.Helper()
	l.eventually(pod+" refused", func() error {
		p, err := l.client.CoreV1().Pods("default").Get(l.Context(), pod, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodScheduled && strings.Contains(c.Message, message)
		}) {
			return fmt.Errorf("conditions %v", p.Status.Conditions)
		}
		return nil
	})
}

func (l *deviceLab) get(claim string) *resourcev1.ResourceClaim {
	l.Helper()
	c, err := l.client.ResourceV1().ResourceClaims("default").Get(l.Context(), claim, metav1.GetOptions{})
	if err != nil {
		l.Fatal(err)
	}
	return c
}

// device is the one that a claim has got.
func (l *deviceLab) device(claim string) string {
	l.Helper()
	a := l.get(claim).Status.Allocation
	if a == nil || len(a.Devices.Results) != 1 {
		l.Fatalf("claim %s has %v", claim, a)
	}
	return a.Devices.Results[0].Pool + "/" + a.Devices.Results[0].Device
}

func (l *deviceLab) status(claim string, change func(*resourcev1.ResourceClaimStatus)) {
	l.Helper()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		c := l.get(claim)
		change(&c.Status)
		_, err := l.client.ResourceV1().ResourceClaims("default").UpdateStatus(l.Context(), c, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		l.Fatal(err)
	}
}

func (l *deviceLab) deletePod(name string) {
	l.Helper()
	zero := int64(0)
	if err := l.client.CoreV1().Pods("default").Delete(l.Context(), name,
		metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil && !apierrors.IsNotFound(err) {
		l.Fatal(err)
	}
}

// Each claim gets a device of its own while there are some; the next one waits
// until one is free again.
func TestDevicesAreAllocatedOnce(t *testing.T) {
	l := newDeviceLab(t)
	l.devices("n1", nil, "a", "b")
	l.devices("n2", nil, "a")
	taken := map[string]string{}
	for _, name := range []string{"one", "two", "three", "four"} {
		l.claim(name, "gpu")
	}
	for _, name := range []string{"one", "two", "three"} {
		l.pod(name, name)
	}
	for _, name := range []string{"one", "two", "three"} {
		node, device := l.bound(name), l.device(name)
		if !strings.HasPrefix(device, node+"/") || taken[device] != "" {
			t.Errorf("pod %s on %s has %s, which %q has", name, node, device, taken[device])
		}
		taken[device] = name
		c := l.get(name)
		if len(c.Status.ReservedFor) != 1 || c.Status.ReservedFor[0].Name != name {
			t.Errorf("claim %s is reserved for %v", name, c.Status.ReservedFor)
		}
		if !slices.Contains(c.Finalizers, resourcev1.Finalizer) {
			t.Errorf("claim %s has finalizers %v", name, c.Finalizers)
		}
	}
	l.pod("four", "four")
	l.refused("four", "0/2 nodes are available: 2 cannot allocate all claims. still not schedulable")
	l.deletePod("two")
	l.status("two", func(s *resourcev1.ResourceClaimStatus) { *s = resourcev1.ResourceClaimStatus{} })
	l.bound("four")
	if got := l.device("four"); taken[got] != "two" {
		t.Errorf("four got %s, which %s has", got, taken[got])
	}
}

// Of devices that a claim lists by preference, the pod goes where the first one is.
func TestPreferredDeviceDecides(t *testing.T) {
	l := newDeviceLab(t)
	class := func(name string) {
		_, err := l.client.ResourceV1().DeviceClasses().Create(t.Context(), &resourcev1.DeviceClass{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{{
				CEL: &resourcev1.CELDeviceSelector{
					Expression: fmt.Sprintf("device.attributes[%q].model == %q", gpuDriver, name)}}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	model := func(name string) func(*resourcev1.Device) {
		return func(d *resourcev1.Device) {
			d.Attributes = map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"model": {StringValue: &name}}
		}
	}
	class("big")
	class("small")
	names := []string{"a", "b", "c", "d", "e", "f"}
	l.devices("n1", model("small"), names...)
	l.devices("n2", model("big"), names...)
	for _, name := range names {
		_, err := l.client.ResourceV1().ResourceClaims("default").Create(t.Context(), &resourcev1.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
				Name: "r", FirstAvailable: []resourcev1.DeviceSubRequest{
					{Name: "first", DeviceClassName: "big"}, {Name: "second", DeviceClassName: "small"}}}}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		l.pod(name, name)
		if node := l.bound(name); node != "n2" {
			t.Errorf("pod %s is on %s, which has only what is asked for second", name, node)
		}
	}
}

// Two pods with one claim run where its device is, and both are noted.
func TestClaimIsShared(t *testing.T) {
	l := newDeviceLab(t)
	l.devices("n2", nil, "a")
	l.claim("shared", "gpu")
	l.pod("first", "shared")
	l.pod("second", "shared")
	if a, b := l.bound("first"), l.bound("second"); a != "n2" || b != "n2" {
		t.Errorf("on %s and %s", a, b)
	}
	if r := l.get("shared").Status.ReservedFor; len(r) != 2 {
		t.Errorf("reserved for %v", r)
	}
	l.pod("elsewhere", "shared", selector(corev1.LabelHostname, "n1"))
	l.refused("elsewhere", "resourceclaim not available on the node")
	if r := l.get("shared").Status.ReservedFor; len(r) != 2 {
		t.Errorf("reserved for %v afterwards", r)
	}
}

// What a pod lacks is told, and it is placed as soon as it is there.
func TestPodWaitsForClaimClassAndDevice(t *testing.T) {
	l := newDeviceLab(t)
	l.pod("p", "late")
	l.claim("late", "new")
	l.refused("p", "request r: device class new does not exist")
	_, err := l.client.ResourceV1().DeviceClasses().Create(t.Context(), &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "new"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l.refused("p", "2 cannot allocate all claims")
	l.devices("n1", nil, "a")
	if node := l.bound("p"); node != "n1" {
		t.Errorf("on %s", node)
	}
}

// What a driver says of a device that it cannot make ready is told.
func TestDeviceFailsToGetReady(t *testing.T) {
	l := newDeviceLab(t)
	l.devices("n1", func(d *resourcev1.Device) {
		d.BindingConditions, d.BindingFailureConditions = []string{"example.com/ready"}, []string{"example.com/broken"}
	}, "a")
	l.claim("c", "gpu")
	l.pod("p", "c")
	l.eventually("allocated", func() error {
		if l.get("c").Status.Allocation == nil {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	l.status("c", func(s *resourcev1.ResourceClaimStatus) {
		s.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: gpuDriver, Pool: "n1", Device: "a",
			Conditions: []metav1.Condition{{Type: "example.com/broken", Status: metav1.ConditionTrue, Reason: "Burnt",
				Message: "smoke", LastTransitionTime: metav1.Now()}}}}
	})
	l.refused("p", `device binding failed: claim=c, reason=Burnt, message="smoke"`)
}

// Devices that nobody uses do not keep a pod from the node where it must be.
func TestUnusedClaimMoves(t *testing.T) {
	l := newDeviceLab(t)
	l.devices("n1", nil, "a")
	l.claim("c", "gpu")
	l.pod("first", "c")
	l.bound("first")
	l.deletePod("first")
	l.status("c", func(s *resourcev1.ResourceClaimStatus) { s.ReservedFor = nil })
	l.devices("n2", nil, "b")
	l.pod("second", "c", selector(corev1.LabelHostname, "n2"))
	l.bound("second")
	if got := l.device("c"); got != "n2/b" {
		t.Errorf("device %s", got)
	}
}

// An allocated claim keeps its devices where they are not what its pod lacks.
func TestClaimStaysWhereDevicesAreNotMissing(t *testing.T) {
	l := newDeviceLab(t)
	l.devices("n1", nil, "a")
	l.devices("n2", nil, "a")
	l.claim("c", "gpu")
	l.pod("first", "c", selector(corev1.LabelHostname, "n1"))
	l.bound("first")
	l.deletePod("first")
	l.status("c", func(s *resourcev1.ResourceClaimStatus) { s.ReservedFor = nil })
	l.pod("second", "c", selector("no", "such"))
	l.refused("second", "2 node(s) didn't match Pod's node affinity/selector. still not schedulable")
	if got := l.device("c"); got != "n1/a" {
		t.Errorf("device %s", got)
	}
}

// A device that must be made ready keeps its pod unbound until its driver says so.
func TestDeviceIsMadeReady(t *testing.T) {
	l := newDeviceLab(t)
	l.devices("n1", func(d *resourcev1.Device) {
		d.BindingConditions, d.BindingFailureConditions = []string{"example.com/ready"}, []string{"example.com/broken"}
	}, "a")
	l.claim("c", "gpu")
	l.pod("p", "c")
	l.eventually("allocated", func() error {
		if l.get("c").Status.Allocation == nil {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	if p, err := l.client.CoreV1().Pods("default").Get(t.Context(), "p", metav1.GetOptions{}); err != nil ||
		p.Spec.NodeName != "" || p.Status.NominatedNodeName != "n1" {
		t.Fatalf("bound to %q before the device was ready, nominated is %q: %v", p.Spec.NodeName,
			p.Status.NominatedNodeName, err)
	}
	l.eventually("told", func() error {
		list, err := l.client.EventsV1().Events("default").List(t.Context(), metav1.ListOptions{})
		if err == nil && !slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool {
			return e.Reason == "BindingConditionsPending" && e.Regarding.Name == "p" &&
				e.Note == "waiting for binding conditions for device on node n1"
		}) {
			err = fmt.Errorf("%d events, none of it", len(list.Items))
		}
		return err
	})
	l.status("c", func(s *resourcev1.ResourceClaimStatus) {
		s.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: gpuDriver, Pool: "n1", Device: "a",
			Conditions: []metav1.Condition{{Type: "example.com/ready", Status: metav1.ConditionTrue, Reason: "Done",
				LastTransitionTime: metav1.Now()}}}}
	})
	l.bound("p")
	if p, err := l.client.CoreV1().Pods("default").Get(t.Context(), "p", metav1.GetOptions{}); err != nil ||
		p.Status.NominatedNodeName != "" {
		t.Errorf("nominated is %q though the pod is bound: %v", p.Status.NominatedNodeName, err)
	}
}

// A selector that fails for the devices of one node keeps the pod from all of
// them: it is wrong, and who wrote it has to learn so.
func TestFaultySelectorIsTold(t *testing.T) {
	l := newDeviceLab(t)
	yes := true
	l.devices("n1", func(d *resourcev1.Device) {
		d.Attributes = map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"fast": {BoolValue: &yes}}
	}, "a")
	l.devices("n2", nil, "a")
	_, err := l.client.ResourceV1().DeviceClasses().Create(t.Context(), &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "fast"},
		Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{{
			CEL: &resourcev1.CELDeviceSelector{Expression: fmt.Sprintf("device.attributes[%q].fast", gpuDriver)}}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l.claim("c", "fast")
	l.pod("p", "c")
	l.refused("p", "CEL runtime error: no such key: fast")
	if c := l.get("c"); c.Status.Allocation != nil {
		t.Errorf("allocated %v", c.Status.Allocation)
	}
}

// A selector that fails for the devices of all nodes is told, too.
func TestSelectorThatFailsEverywhereIsTold(t *testing.T) {
	l := newDeviceLab(t)
	l.devices("n1", nil, "a")
	l.devices("n2", nil, "a")
	_, err := l.client.ResourceV1().DeviceClasses().Create(t.Context(), &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "fast"},
		Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{{
			CEL: &resourcev1.CELDeviceSelector{Expression: fmt.Sprintf("device.attributes[%q].fast", gpuDriver)}}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l.claim("c", "fast")
	l.pod("p", "c")
	l.refused("p", `running "DynamicResources" filter plugin: `)
	l.refused("p", "CEL runtime error: no such key: fast")
}
