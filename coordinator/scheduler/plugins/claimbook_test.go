package plugins

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
)

// oneClaim is a cluster with one claim, as the informer has it.
type oneClaim struct {
	Devices
	claim *resourcev1.ResourceClaim
}

func (d *oneClaim) Claim(_, _ string) (*resourcev1.ResourceClaim, error) { return d.claim, nil }

// The informer may show what was written before the writer has its answer. A pod
// that is looked at in between must not wait for an event that has passed.
func TestClaimIsUnderWayUntilItIsSeen(t *testing.T) {
	open := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "c", ResourceVersion: "1"}}
	allocation := &resourcev1.AllocationResult{}
	seen := open.DeepCopy()
	seen.ResourceVersion, seen.Status.Allocation = "2", allocation
	d := &oneClaim{claim: open}
	b := claimBook{devices: d, entries: map[types.UID]*claimEntry{}}
	state := func() (underWay, allocated bool) {
		c, err := b.claim("default", "c")
		if err != nil {
			t.Fatal(err)
		}
		return b.underWay(c), c.Status.Allocation != nil
	}
	check := func(what string, wantUnderWay, wantAllocated bool) {
		t.Helper()
		if u, a := state(); u != wantUnderWay || a != wantAllocated {
			t.Errorf("%s: under way %t, allocated %t", what, u, a)
		}
	}
	check("nothing decided", false, false)
	b.reserve("pod", []*resourcev1.ResourceClaim{open},
		&devicePlan{results: map[types.UID]*resourcev1.AllocationResult{"c": allocation}})
	check("decided", true, true)
	d.claim = seen
	check("seen before the answer", false, true)
	if b.reserved("pod", "c") == nil {
		t.Error("the writer does not know what it writes")
	}
	d.claim = open
	b.written(seen)
	check("written, not seen", false, true)
	d.claim = seen
	check("seen", false, true)
	if len(b.entries) != 0 {
		t.Errorf("kept for ever: %v", b.entries)
	}
}

// A pod may have one claim under two names; it is allocated once.
func TestClaimUnderTwoNames(t *testing.T) {
	name := "c"
	d := &dynamicResources{devices: &oneClaim{claim: &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: "c"}}}, book: claimBook{entries: map[types.UID]*claimEntry{}}}
	d.book.devices = d.devices
	pod := &corev1.Pod{Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{
		{Name: "a", ResourceClaimName: &name}, {Name: "b", ResourceClaimName: &name}}}}
	if list, err := d.claims(pod); err != nil || len(list) != 1 {
		t.Errorf("claims %v, %v", list, err)
	}
}

// rack is devices that a test fills.
type rack struct {
	Devices
	claims []*resourcev1.ResourceClaim
}

func (r *rack) Claims() ([]*resourcev1.ResourceClaim, error) { return r.claims, nil }

func (r *rack) Claim(_, name string) (*resourcev1.ResourceClaim, error) {
	for _, c := range r.claims {
		if c.Name == name {
			return c, nil
		}
	}
	return nil, missing("resourceclaims", name)
}

// deviceClaim has the devices of pool p that results name.
func deviceClaim(name, version string, results ...resourcev1.DeviceRequestAllocationResult) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: "ns", UID: types.UID(name), ResourceVersion: version}}
	if len(results) > 0 {
		c.Status.Allocation = allocationOf(results...)
	}
	return c
}

func allocationOf(results ...resourcev1.DeviceRequestAllocationResult) *resourcev1.AllocationResult {
	return &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: results}}
}

func result(device string) resourcev1.DeviceRequestAllocationResult {
	return resourcev1.DeviceRequestAllocationResult{Driver: "d", Pool: "p", Device: device}
}

// What is decided or written counts before the informer shows it, and no longer.
func TestClaimBook(t *testing.T) {
	shelf := &rack{claims: []*resourcev1.ResourceClaim{deviceClaim("c", "5")}}
	book := claimBook{devices: shelf, entries: map[types.UID]*claimEntry{}}
	taken := func(when string, want bool) {
		t.Helper()
		state, err := book.allocated()
		if err != nil {
			t.Fatal(err)
		}
		if got := state.AllocatedDevices.Has(structured.MakeDeviceID("d", "p", "a")); got != want {
			t.Errorf("%s: taken %t, want %t", when, got, want)
		}
	}
	taken("at first", false)
	book.reserve("pod", shelf.claims,
		&devicePlan{results: map[types.UID]*resourcev1.AllocationResult{"c": allocationOf(result("a"))}})
	taken("when decided", true)
	underWay := func() bool {
		c, err := book.claim("ns", "c")
		return err == nil && book.underWay(c)
	}
	if !underWay() || book.reserved("pod", "c") == nil || book.reserved("other", "c") != nil {
		t.Error("not the pod's decision")
	}
	if shelf.claims[0].Status.Allocation != nil {
		t.Error("the informer's object was changed")
	}
	book.release("other")
	taken("when another pod gives up", true)
	book.release("pod")
	taken("when the pod gives up", false)

	book.written(deviceClaim("c", "7", result("a")))
	taken("when written", true)
	if underWay() {
		t.Error("under way though it is written")
	}
	book.release("pod")
	taken("when it is written, and the pod gives up", true)
	shelf.claims[0] = deviceClaim("c", "6")
	taken("while the informer is behind", true)
	shelf.claims[0] = deviceClaim("c", "8")
	taken("when it was freed since", false)

	book.written(deviceClaim("c", "9", result("a")))
	shelf.claims = nil
	taken("when the claim is gone", false)
	if len(book.entries) != 0 {
		t.Errorf("entries %v stay", book.entries)
	}
}

// Devices of administrators are not taken; shared ones are by what they give.
func TestCountDevices(t *testing.T) {
	admin, shared, plain := result("a"), result("b"), result("c")
	admin.AdminAccess = ptr.To(true)
	shared.ShareID = ptr.To(types.UID("s"))
	shared.ConsumedCapacity = map[resourcev1.QualifiedName]resource.Quantity{"memory": resource.MustParse("2Gi")}
	book := claimBook{devices: &rack{claims: []*resourcev1.ResourceClaim{
		deviceClaim("x", "1", admin, shared), deviceClaim("y", "1", plain, shared)}}}
	state, err := book.allocated()
	if err != nil {
		t.Fatal(err)
	}
	if n := len(state.AllocatedDevices); n != 1 || !state.AllocatedDevices.Has(structured.MakeDeviceID("d", "p", "c")) {
		t.Errorf("taken alone: %v", state.AllocatedDevices)
	}
	if n := len(state.AllocatedSharedDeviceIDs); n != 1 {
		t.Errorf("shared: %v", state.AllocatedSharedDeviceIDs)
	}
	used := state.AggregatedCapacity[structured.MakeDeviceID("d", "p", "b")]["memory"]
	if used == nil || used.String() != "4Gi" {
		t.Errorf("consumed %v, want 4Gi", used)
	}
}
