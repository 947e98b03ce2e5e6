package attachdetach

import (
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// forced counts the volumes that were taken from nodes that may have them mounted.
var forced = metrics.NewCounterVec(&metrics.CounterOpts{
	Subsystem:      "attach_detach_controller",
	Name:           "attachdetach_controller_forced_detaches",
	Help:           "Number of times the A/D Controller performed a forced detach",
	StabilityLevel: metrics.ALPHA,
}, []string{"reason"})

func init() { legacyregistry.MustRegister(forced) }

func forcedDetach(d decision) {
	reason := "timeout"
	if d == forceService {
		reason = "out-of-service"
	}
	forced.WithLabelValues(reason).Inc()
}
