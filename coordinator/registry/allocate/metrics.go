package allocate

import (
	"net/netip"
	"sync"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// How an address came to be allocated, as the metrics call it: as asked for, or any.
const (
	static  = "static"
	dynamic = "dynamic"
)

const (
	addressSubsystem = "clusterip_allocator"
	portSubsystem    = "nodeport_allocator"
)

// The metrics have upstream's names, labels and texts. They tell what this process
// knows: another coordinator's allocations count when it looks the next time.
var (
	allocatedIPs = gauges("allocated_ips", "Gauge measuring the number of allocated IPs for Services")
	availableIPs = gauges("available_ips", "Gauge measuring the number of available IPs for Services")
	allocations  = counts("allocation_total", "Number of Cluster IPs allocations")
	failures     = counts("allocation_errors_total", "Number of errors trying to allocate Cluster IPs")
	durations    = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Namespace: namespace, Subsystem: addressSubsystem, Name: "allocation_duration_seconds",
		Help: "Duration in seconds to allocate a Cluster IP by ServiceCIDR", Buckets: metrics.DefBuckets,
		StabilityLevel: metrics.ALPHA,
	}, []string{"cidr"})
	allocatedPorts = portGauge("allocated_ports", "Gauge measuring the number of allocated NodePorts for Services")
	availablePorts = portGauge("available_ports", "Gauge measuring the number of available NodePorts for Services")
	portsGiven     = portCounts("allocation_total", "Number of NodePort allocations")
	portsRefused   = portCounts("allocation_errors_total", "Number of errors trying to allocate NodePort")
)

const namespace = "kube_apiserver"

func gauges(name, help string) *metrics.GaugeVec {
	return metrics.NewGaugeVec(&metrics.GaugeOpts{Namespace: namespace, Subsystem: addressSubsystem, Name: name,
		Help: help, StabilityLevel: metrics.ALPHA}, []string{"cidr"})
}

func counts(name, help string) *metrics.CounterVec {
	return metrics.NewCounterVec(&metrics.CounterOpts{Namespace: namespace, Subsystem: addressSubsystem, Name: name,
		Help: help, StabilityLevel: metrics.ALPHA}, []string{"cidr", "scope"})
}

func portGauge(name, help string) *metrics.Gauge {
	return metrics.NewGauge(&metrics.GaugeOpts{Namespace: namespace, Subsystem: portSubsystem, Name: name, Help: help,
		StabilityLevel: metrics.ALPHA})
}

func portCounts(name, help string) *metrics.CounterVec {
	return metrics.NewCounterVec(&metrics.CounterOpts{Namespace: namespace, Subsystem: portSubsystem, Name: name,
		Help: help, StabilityLevel: metrics.ALPHA}, []string{"scope"})
}

var register = sync.OnceFunc(func() {
	legacyregistry.MustRegister(allocatedIPs, availableIPs, allocations, failures, durations, allocatedPorts,
		availablePorts, portsGiven, portsRefused)
})

// allocated counts an attempt to allocate an address of a range that began at a time.
func allocated(p netip.Prefix, scope string, begin time.Time, err error) {
	if err != nil {
		failures.WithLabelValues(p.String(), scope).Inc()
		return
	}
	allocations.WithLabelValues(p.String(), scope).Inc()
	durations.WithLabelValues(p.String()).Observe(time.Since(begin).Seconds())
}

// tell shows how many addresses of a pool are taken.
func (a addresses) tell() {
	allocatedIPs.WithLabelValues(a.prefix.String()).Set(float64(a.taken))
	availableIPs.WithLabelValues(a.prefix.String()).Set(float64(a.size - a.taken))
}
