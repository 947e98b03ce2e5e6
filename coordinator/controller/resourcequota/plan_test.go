package resourcequota

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/shoal-project/shoal/coordinator/quota"
)

func amounts(pairs ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}

// RQ-12: any resource is counted by name, events never.
func TestConcerns(t *testing.T) {
	var got []string
	hard := amounts("cpu", "1", "pods", "1", "count/fish.sea.example", "1", "count/events", "1",
		"count/secrets", "1", "other", "1")
	for gr := range concerns(hard, quota.Evaluators(nil, informers.NewSharedInformerFactory(fake.NewClientset(), 0))) {
		got = append(got, gr.String())
	}
	slices.Sort(got)
	if want := []string{"fish.sea.example", "pods", "secrets"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestNext(t *testing.T) {
	q := &corev1.ResourceQuota{
		Spec: corev1.ResourceQuotaSpec{Hard: amounts("pods", "2", "cpu", "1", "count/fish.sea.example", "1")}}
	s := next(q, amounts("pods", "0", "cpu", "0"))
	if !differs(q, s) || len(s.Used) != 2 {
		t.Errorf("first count: %+v", s)
	}
	q.Status = s
	if again := next(q, amounts("cpu", "0")); differs(q, again) {
		t.Errorf("what could not be counted does not stay: %+v", again)
	}
	q.Spec.Hard = amounts("pods", "5")
	s = next(q, amounts("pods", "1"))
	if !differs(q, s) || !quotav1.Equals(s.Used, amounts("pods", "1")) || !quotav1.Equals(s.Hard, q.Spec.Hard) {
		t.Errorf("another limit: %+v", s)
	}
}

// What was charged is not taken back before the object can be stored.
func TestCharges(t *testing.T) {
	if a := amounts("pods", "2", "cpu", "1"); lower(a, a) || !lower(a, amounts("pods", "1", "cpu", "3")) ||
		lower(amounts("pods", "1"), a) {
		t.Error("lower")
	}
	var c charges
	now := time.Unix(1000, 0)
	c.note("ns/q", "1", false, now)
	if w := c.settled("ns/q", "1", now); w > 0 {
		t.Errorf("waits %v for what was never charged", w)
	}
	if w := c.settled("ns/q", "2", now); w != unseen {
		t.Errorf("waits %v for a version that it has not been told of", w)
	}
	c.note("ns/q", "2", true, now)
	c.note("ns/q", "3", false, now) // its labels
	if w := c.settled("ns/q", "3", now.Add(settling/4)); w != settling*3/4 {
		t.Errorf("waits %v", w)
	}
	if w := c.settled("ns/q", "3", now.Add(2*settling)); w > 0 {
		t.Errorf("waits %v", w)
	}
	c.forget("ns/q")
	if w := c.settled("ns/q", "3", now); w != unseen || len(c.seen) != 0 {
		t.Errorf("waits %v for what is forgotten", w)
	}
}
