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
