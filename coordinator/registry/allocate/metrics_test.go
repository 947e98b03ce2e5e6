package allocate

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-base/metrics/testutil"
)

// What is allocated of a range is told by its name.
func TestMetrics(t *testing.T) {
	const cidr = "10.77.0.0/29" // six addresses, of no other test
	ctx, s := t.Context(), &corev1.Service{}
	pools := newAddressPools(newBook(cidr))
	value := func(v float64, err error) float64 {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	want := func(taken, free, anyhow, asked float64) {
		t.Helper()
		got := [4]float64{
			value(testutil.GetGaugeMetricValue(allocatedIPs.WithLabelValues(cidr))),
			value(testutil.GetGaugeMetricValue(availableIPs.WithLabelValues(cidr))),
			value(testutil.GetCounterMetricValue(allocations.WithLabelValues(cidr, dynamic))),
			value(testutil.GetCounterMetricValue(allocations.WithLabelValues(cidr, static))),
		}
		if want := [4]float64{taken, free, anyhow, asked}; got != want {
			t.Errorf("allocated, available, by anyone, as asked: %v, want %v", got, want)
		}
	}
	ip, err := pools.next(ctx, s, corev1.IPv4Protocol, false)
	if err != nil {
		t.Fatal(err)
	}
	want(1, 5, 1, 0)
	other := netip.MustParseAddr("10.77.0.1")
	if ip == other {
		other = other.Next()
	}
	if err := pools.take(ctx, s, other, false); err != nil {
		t.Fatal(err)
	}
	want(2, 4, 1, 1)
	if err := pools.release(ctx, s, ip); err != nil {
		t.Fatal(err)
	}
	want(1, 5, 1, 1)
	if _, err := pools.next(ctx, s, corev1.IPv4Protocol, true); err != nil {
		t.Fatal(err)
	}
	want(1, 5, 1, 1)
}

// Node ports are counted by how they were asked for, dry runs not at all.
func TestPortMetrics(t *testing.T) {
	value := func(v float64, err error) float64 {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	counts := func() [4]float64 {
		return [4]float64{
			value(testutil.GetCounterMetricValue(portsGiven.WithLabelValues(dynamic))),
			value(testutil.GetCounterMetricValue(portsGiven.WithLabelValues(static))),
			value(testutil.GetCounterMetricValue(portsRefused.WithLabelValues(dynamic))),
			value(testutil.GetCounterMetricValue(portsRefused.WithLabelValues(static))),
		}
	}
	a := dualStack() // has 30000
	before := counts()
	for _, port := range []int32{30005, 0, 30000, 1} {
		for _, dryRun := range []bool{true, false} {
			s := &corev1.Service{Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 1, NodePort: port}}}}
			if finish, err := a.Begin(t.Context(), s, nil, dryRun); err == nil {
				finish(t.Context(), true)
			}
		}
	}
	after := counts()
	for i := range after {
		after[i] -= before[i]
	}
	if want := [4]float64{1, 1, 0, 2}; after != want {
		t.Errorf("given to anyone and as asked, refused to anyone and as asked: %v, want %v", after, want)
	}
}
