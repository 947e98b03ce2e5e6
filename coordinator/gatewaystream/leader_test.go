package gatewaystream

import (
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"github.com/shoal-project/shoal/coordinator/gateway"
)

// TestArrival: the endpoints of a new Service are all nodes at once; a node that comes later is
// one when it has been told for a while, and one that goes is none at once.
func TestArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		l := &leader{Hub: &Hub{cfg: Config{Client: client}}}
		services := client.CoreV1().Services("ns")
		known, err := services.Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns",
			Name: "web", UID: "u"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		write := func(nodes ...string) (have []string, due time.Time) {
			t.Helper()
			slice := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4,
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-ipv4-0", Labels: map[string]string{
					discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: gateway.Manager}}}
			for _, name := range nodes {
				slice.Endpoints = append(slice.Endpoints,
					discoveryv1.Endpoint{Addresses: []string{"10.0.0.1"}, NodeName: &name})
			}
			p := &gateway.Plan{Services: []*gateway.Wanted{{Service: known, Known: known,
				Slices: []*discoveryv1.EndpointSlice{slice}}}}
			l.due = time.Time{}
			if err := l.services(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			if len(slice.Endpoints) != len(nodes) {
				t.Error("the plan was changed")
			}
			got, err := client.DiscoveryV1().EndpointSlices("ns").Get(t.Context(), "web-ipv4-0", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range got.Endpoints {
				have = append(have, *e.NodeName)
			}
			return have, l.due
		}
		check := func(due time.Duration, want []string, nodes ...string) {
			t.Helper()
			got, next := write(nodes...)
			if !slices.Equal(got, want) {
				t.Errorf("endpoints are %v, not %v", got, want)
			}
			if due == 0 != next.IsZero() || due > 0 && time.Until(next) != due {
				t.Errorf("the next round is at %v, not in %v", next, due)
			}
		}
		check(0, []string{"one", "two"}, "one", "two")
		check(arrive, []string{"one", "two"}, "one", "two", "three")
		time.Sleep(time.Second)
		check(arrive-time.Second, []string{"two"}, "two", "three", "four")
		time.Sleep(arrive - time.Second)
		check(time.Second, []string{"two", "three"}, "two", "three", "four")
		time.Sleep(time.Second)
		check(0, []string{"two", "three", "four"}, "two", "three", "four")
		check(0, []string{"three"}, "three")
		check(arrive, []string{"three"}, "two", "three")
		check(0, []string{"three"}, "three") // it has not come
		time.Sleep(arrive)
		check(arrive, []string{"three"}, "two", "three") // and begins anew
	})
}

// TestLeaving: a node that leaves a Gateway hears of it later than others, once, whatever is
// changed meanwhile; what does not make it leave is told at once.
func TestLeaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var since time.Time
		if hold(&since, false) > 0 {
			t.Error("what does not make it leave waits")
		}
		if got := hold(&since, true); got != leave {
			t.Errorf("it waits %v", got)
		}
		time.Sleep(leave / 2)
		if got := hold(&since, true); got != leave/2 {
			t.Errorf("after a half of it, it waits %v", got)
		}
		time.Sleep(leave / 2)
		if got := hold(&since, true); got > 0 {
			t.Errorf("after all of it, it waits %v", got)
		}
		if hold(&since, false) > 0 || hold(&since, true) != leave {
			t.Error("the next time is not as the first")
		}
	})
}

// TestWhatCounts: a node's labels count, and of ConfigMaps those that parameters are in.
func TestWhatCounts(t *testing.T) {
	h := &Hub{}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": ""}}}
	next := node.DeepCopy()
	next.ResourceVersion = "2"
	if ofNode(node, next) {
		t.Error("a node that has not changed counts")
	}
	next.Labels = map[string]string{"b": ""}
	if !ofNode(node, next) {
		t.Error("a node's labels do not count")
	}
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "edge"}}
	if h.ofConfigMap(nil, m) {
		t.Error("a ConfigMap that nobody names counts")
	}
	h.parameters.Store(&map[types.NamespacedName]bool{{Namespace: "ns", Name: "edge"}: true})
	if !h.ofConfigMap(nil, m) || !h.ofConfigMap(m, nil) {
		t.Error("parameters do not count")
	}
}

// TestInvalidClass: an event says once what is wrong with a class of Ingresses, and again when it
// is something else.
func TestInvalidClass(t *testing.T) {
	events := record.NewFakeRecorder(10)
	l := &leader{Hub: &Hub{log: slog.New(slog.DiscardHandler)}, recorder: events, invalid: map[types.UID]string{}}
	class := &networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: "edge", UID: "u"}}
	invalid := func(why string) *gateway.Plan {
		return &gateway.Plan{Invalid: map[*networkingv1.IngressClass]string{class: why}}
	}
	for _, p := range []*gateway.Plan{invalid("one"), invalid("one"), invalid("two"), {}, invalid("two")} {
		l.tellInvalid(p)
	}
	close(events.Events)
	var got []string
	for e := range events.Events {
		got = append(got, e)
	}
	want := []string{"Warning InvalidParameters one", "Warning InvalidParameters two", "Warning InvalidParameters two"}
	if !slices.Equal(got, want) {
		t.Errorf("events %q, not %q", got, want)
	}
}
