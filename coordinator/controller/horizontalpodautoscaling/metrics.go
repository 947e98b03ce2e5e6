package horizontalpodautoscaling

import (
	"errors"
	"sync"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// The metrics have upstream's names, labels, texts and buckets.
const (
	actionLabel = "The label 'action' should be either 'scale_down', 'scale_up', or 'none'."
	errorLabel  = "the label 'error' should be either 'spec', 'internal', or 'none'."
	firstError  = " Note that if both spec and internal errors happen during a reconciliation, the first one to occur is " +
		"reported in `error` label."
	typeLabel = " The label 'metric_type' corresponds to HPA.spec.metrics[*].type"
)

var (
	reconciliations = counts("reconciliations_total", "Number of reconciliations of HPA controller. "+actionLabel+
		" Also, "+errorLabel+firstError, "action", "error")
	reconciliationDuration = durations("reconciliation_duration_seconds",
		"The time(seconds) that the HPA controller takes to reconcile once. "+actionLabel+" Also, "+errorLabel+
			firstError,
		"action", "error")
	computations = counts("metric_computation_total", "Number of metric computations. "+actionLabel+" Also, "+
		errorLabel+typeLabel, "action", "error", "metric_type")
	computationDuration = durations("metric_computation_duration_seconds",
		"The time(seconds) that the HPA controller takes to calculate one metric. "+actionLabel+" The"+errorLabel[3:]+
			typeLabel, "action", "error", "metric_type")
	autoscalers = metrics.NewGauge(&metrics.GaugeOpts{
		Subsystem: subsystem, Name: "num_horizontal_pod_autoscalers", Help: "Current number of controlled HPA objects.",
		StabilityLevel: metrics.ALPHA,
	})
	desiredReplicas = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem: subsystem, Name: "desired_replicas", Help: "Current desired replica count for HPA objects.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"namespace", "hpa_name"})
)

// noAction and noError are the labels of what did not happen.
const noAction, noError = "none", "none"

const subsystem = "horizontal_pod_autoscaler_controller"

func counts(name, help string, labels ...string) *metrics.CounterVec {
	return metrics.NewCounterVec(&metrics.CounterOpts{Subsystem: subsystem, Name: name, Help: help,
		StabilityLevel: metrics.BETA}, labels)
}

func durations(name, help string, labels ...string) *metrics.HistogramVec {
	return metrics.NewHistogramVec(&metrics.HistogramOpts{Subsystem: subsystem, Name: name, Help: help,
		Buckets: metrics.ExponentialBuckets(0.001, 2, 15), StabilityLevel: metrics.BETA}, labels)
}

var register = sync.OnceFunc(func() {
	legacyregistry.MustRegister(reconciliations, reconciliationDuration, computations, computationDuration, autoscalers,
		desiredReplicas)
})

// specError is one that its user can mend.
type specError struct{ error }

func (e specError) Unwrap() error { return e.error }

// errorOf is whose an error is.
func errorOf(err error) string {
	var spec specError
	switch {
	case err == nil:
		return noError
	case errors.As(err, &spec):
		return "spec"
	}
	return "internal"
}

func actionOf(current, wanted int32) string {
	switch {
	case wanted > current:
		return "scale_up"
	case wanted < current:
		return "scale_down"
	}
	return noAction
}

func reconciled(action string, err error, begin time.Time) {
	reconciliations.WithLabelValues(action, errorOf(err)).Inc()
	reconciliationDuration.WithLabelValues(action, errorOf(err)).Observe(time.Since(begin).Seconds())
}

func computed(action string, err error, kind string, begin time.Time) {
	computations.WithLabelValues(action, errorOf(err), kind).Inc()
	computationDuration.WithLabelValues(action, errorOf(err), kind).Observe(time.Since(begin).Seconds())
}
