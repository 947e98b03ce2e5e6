package scheduler

import (
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// Results of an attempt to schedule a pod, as the metrics call them.
const (
	resultScheduled     = "scheduled"
	resultUnschedulable = "unschedulable"
	resultError         = "error"
)

// maxAttemptsLabel bounds the values of the label "attempts".
const maxAttemptsLabel = 15

// The scheduler's metrics have upstream's names, labels, texts and buckets, for
// the rules and dashboards that are written for those.
var (
	attempts = metrics.NewCounterVec(&metrics.CounterOpts{
		Name: "scheduler_schedule_attempts_total",
		Help: "Number of attempts to schedule pods, by the result. 'unschedulable' means a pod could not be scheduled, " +
			"while 'error' means an internal scheduler problem.",
		StabilityLevel: metrics.STABLE,
	}, []string{"result", "profile"})
	attemptDuration = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Name:           "scheduler_scheduling_attempt_duration_seconds",
		Help:           "Scheduling attempt latency in seconds (scheduling algorithm + binding)",
		Buckets:        metrics.ExponentialBuckets(0.001, 2, 15),
		StabilityLevel: metrics.STABLE,
	}, []string{"result", "profile"})
	algorithmDuration = metrics.NewHistogram(&metrics.HistogramOpts{
		Name:           "scheduler_scheduling_algorithm_duration_seconds",
		Help:           "Scheduling algorithm latency in seconds",
		Buckets:        metrics.ExponentialBuckets(0.001, 2, 15),
		StabilityLevel: metrics.ALPHA,
	})
	podDuration = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Name: "scheduler_pod_scheduling_sli_duration_seconds",
		Help: "E2e latency for a pod being scheduled, from the time the pod enters the scheduling queue and might " +
			"involve multiple scheduling attempts.",
		Buckets:        metrics.ExponentialBuckets(0.01, 2, 20),
		StabilityLevel: metrics.BETA,
	}, []string{"attempts"})
	podAttempts = metrics.NewHistogram(&metrics.HistogramOpts{
		Name:           "scheduler_pod_scheduling_attempts",
		Help:           "Number of attempts to successfully schedule a pod.",
		Buckets:        metrics.ExponentialBuckets(1, 2, 5),
		StabilityLevel: metrics.STABLE,
	})
	pointDuration = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Name:           "scheduler_framework_extension_point_duration_seconds",
		Help:           "Latency for running all plugins of a specific extension point.",
		Buckets:        metrics.ExponentialBuckets(0.0001, 2, 12),
		StabilityLevel: metrics.STABLE,
	}, []string{"extension_point", "status", "profile"})
	permitWait = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Name:           "scheduler_permit_wait_duration_seconds",
		Help:           "Duration of waiting on permit.",
		Buckets:        metrics.ExponentialBuckets(0.001, 2, 15),
		StabilityLevel: metrics.ALPHA,
	}, []string{"result"})
	preemptionAttempts = metrics.NewCounter(&metrics.CounterOpts{
		Name:           "scheduler_preemption_attempts_total",
		Help:           "Total preemption attempts in the cluster till now",
		StabilityLevel: metrics.STABLE,
	})
	preemptionVictims = metrics.NewHistogram(&metrics.HistogramOpts{
		Name:           "scheduler_preemption_victims",
		Help:           "Number of selected preemption victims",
		Buckets:        metrics.ExponentialBuckets(1, 2, 7),
		StabilityLevel: metrics.STABLE,
	})

	incomingPods = metrics.NewCounterVec(&metrics.CounterOpts{
		Name:           "scheduler_queue_incoming_pods_total",
		Help:           "Number of pods added to scheduling queues by event and queue type.",
		StabilityLevel: metrics.STABLE,
	}, []string{"queue", "event"})
	goroutines = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Name:           "scheduler_goroutines",
		Help:           "Number of running goroutines split by the work they do such as binding.",
		StabilityLevel: metrics.BETA,
	}, []string{"operation"})

	pendingDesc = metrics.NewDesc("scheduler_pending_pods", "Number of pending pods, by the queue type. 'active' means "+
		"number of pods in activeQ; 'backoff' means number of pods in backoffQ; 'unschedulable' means number of pods in "+
		"unschedulablePods that the scheduler attempted to schedule and failed; 'gated' is the number of unschedulable "+
		"pods that the scheduler never attempted to schedule because they are gated.",
		[]string{"queue"}, nil, metrics.STABLE, "")
	unschedulableDesc = metrics.NewDesc("scheduler_unschedulable_pods", "The number of unschedulable pods broken down "+
		"by plugin name. A pod will increment the gauge for all plugins that caused it to not schedule and so this metric "+
		"have meaning only when broken down by plugin.", []string{"plugin", "profile"}, nil, metrics.ALPHA, "")
	cacheDesc = metrics.NewDesc("scheduler_scheduler_cache_size", "Number of nodes, pods, and assumed (bound) pods in the "+
		"scheduler cache.", []string{"type"}, nil, metrics.ALPHA, "")
)

// state tells, when the metrics are asked for, what the scheduler that runs in
// this process holds.
type state struct {
	metrics.BaseStableCollector

	register sync.Once
	running  atomic.Pointer[Scheduler]
}

var current state

// show puts the metrics on the page: what is counted before is lost.
func (c *state) show() {
	c.register.Do(func() {
		for _, m := range []metrics.Registerable{attempts, attemptDuration, algorithmDuration, podDuration, podAttempts,
			pointDuration, permitWait, preemptionAttempts, preemptionVictims, incomingPods, goroutines} {
			legacyregistry.MustRegister(m)
		}
		legacyregistry.CustomMustRegister(c)
	})
}

// begin has the page tell of s until end.
func (c *state) begin(s *Scheduler) (end func()) {
	c.running.Store(s)
	return func() { c.running.CompareAndSwap(s, nil) }
}

// DescribeWithStability implements metrics.StableCollector, as does the next.
func (c *state) DescribeWithStability(ch chan<- *metrics.Desc) {
	ch <- pendingDesc
	ch <- unschedulableDesc
	ch <- cacheDesc
}

// CollectWithStability tells nothing where no scheduler runs.
func (c *state) CollectWithStability(ch chan<- metrics.Metric) {
	s := c.running.Load()
	if s == nil {
		return
	}
	gauge := func(d *metrics.Desc, n int, labels ...string) {
		ch <- metrics.NewLazyConstMetric(d, metrics.GaugeValue, float64(n), labels...)
	}
	q := s.queue.Pending()
	gauge(pendingDesc, q.Active, "active")
	gauge(pendingDesc, q.Backoff, "backoff")
	gauge(pendingDesc, q.Unschedulable, "unschedulable")
	gauge(pendingDesc, q.Gated, "gated")
	for refusal, n := range q.RefusedBy {
		// Labels are bounded by the configuration.
		if s.profiles[refusal.SchedulerName] != nil {
			gauge(unschedulableDesc, n, refusal.Plugin, refusal.SchedulerName)
		}
	}
	nodes, pods, assumed := s.cache.size()
	gauge(cacheDesc, nodes, "nodes")
	gauge(cacheDesc, pods, "pods")
	gauge(cacheDesc, assumed, "assumed_pods")
}

func incoming(part, event string) { incomingPods.WithLabelValues(part, event).Inc() }

// works counts a goroutine that does something; end is its end.
func works(on string) (end func()) {
	g := goroutines.WithLabelValues(on)
	g.Inc()
	return g.Dec
}

// attempted counts an attempt that began at a time.
func attempted(result, profile string, begin time.Time) {
	attempts.WithLabelValues(result, profile).Inc()
	attemptDuration.WithLabelValues(result, profile).Observe(time.Since(begin).Seconds())
}

// failedAttempt counts one that found no place, or failed.
func failedAttempt(profile *Profile, begin time.Time, err error) {
	result := resultError
	var fit *framework.FitError
	if errors.As(err, &fit) || errors.Is(err, errNoNodes) {
		result = resultUnschedulable
	}
	attempted(result, profile.Name, begin)
}

// scheduled counts a pod that is bound.
func scheduled(q *framework.QueuedPod, profile string, begin time.Time) {
	attempted(resultScheduled, profile, begin)
	podAttempts.Observe(float64(q.Attempts))
	label := strconv.Itoa(q.Attempts)
	if q.Attempts >= maxAttemptsLabel {
		label = strconv.Itoa(maxAttemptsLabel) + "+"
	}
	podDuration.WithLabelValues(label).Observe(time.Since(q.Initial).Seconds())
}

// timed notes how long the plugins of a point took, and with which result.
func timed(point string, profile *Profile, begin time.Time, st *framework.Status) {
	pointDuration.WithLabelValues(point, st.CodeName(), profile.Name).Observe(time.Since(begin).Seconds())
}
