package leader

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// master is the gauge of client-go's leader election, which rules and dashboards ask for.
var master = metrics.NewGaugeVec(&metrics.GaugeOpts{
	Name: "leader_election_master_status",
	Help: "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates master. " +
		"'name' is the string used to identify the lease. Please make sure to group by name.",
	StabilityLevel: metrics.ALPHA,
}, []string{"name"})

// registerMetrics puts the gauge on the metrics page; nobody leads yet.
var registerMetrics = sync.OnceFunc(func() {
	legacyregistry.MustRegister(master)
	master.WithLabelValues(name).Set(0)
})

// leads says that this process leads, until end is called.
func leads() (end func()) {
	g := master.WithLabelValues(name)
	g.Set(1)
	return func() { g.Set(0) }
}
