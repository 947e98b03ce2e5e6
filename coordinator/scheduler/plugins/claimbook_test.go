package plugins

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
	b.reserve("pod", []*resourcev1.ResourceClaim{open}, map[types.UID]*resourcev1.AllocationResult{"c": allocation})
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
