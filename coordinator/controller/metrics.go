package controller

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics/legacyregistry"
)

// The families of client-go's work queues, which the libraries' own queues are
// in too: names, texts and buckets must be the same, or the page is refused
// (TestQueueMetrics asks for it). client-go would keep a goroutine and a timer of
// half a second for each queue with a name; these are measured when asked for.
const (
	depthName      = "workqueue_depth"
	addsName       = "workqueue_adds_total"
	waitName       = "workqueue_queue_duration_seconds"
	workName       = "workqueue_work_duration_seconds"
	unfinishedName = "workqueue_unfinished_work_seconds"
	longestName    = "workqueue_longest_running_processor_seconds"
	retriesName    = "workqueue_retries_total"
)

var (
	queueLabels = []string{"name"}

	depthDesc = prometheus.NewDesc(depthName, "[BETA] Current depth of workqueue", queueLabels, nil)
	addsDesc  = prometheus.NewDesc(addsName, "[BETA] Total number of adds handled by workqueue", queueLabels, nil)

	unfinishedDesc = prometheus.NewDesc(unfinishedName, "[BETA] How many seconds of work has done that is in "+
		"progress and hasn't been observed by work_duration. Large values indicate stuck threads. One can deduce the "+
		"number of stuck threads by observing the rate at which this increases.", queueLabels, nil)
	longestDesc = prometheus.NewDesc(longestName, "[BETA] How many seconds has the longest running processor for "+
		"workqueue been running.", queueLabels, nil)
	retriesDesc = prometheus.NewDesc(retriesName, "[BETA] Total number of retries handled by workqueue",
		queueLabels, nil)

	queueBuckets = prometheus.ExponentialBuckets(10e-9, 10, 10)
)

// queueStats are the measurements of all queues of one name: a controller that
// leads again goes on counting.
type queueStats struct {
	name          string
	adds, retries atomic.Uint64
	wait, work    prometheus.Histogram
	loop          atomic.Pointer[Loop] // the one that runs; nil: none
}

func newQueueStats(name string) *queueStats {
	labels := prometheus.Labels{"name": name}
	return &queueStats{
		name: name,
		wait: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: waitName, ConstLabels: labels, Buckets: queueBuckets,
			Help: "[BETA] How long in seconds an item stays in workqueue before being requested.",
		}),
		work: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: workName, ConstLabels: labels, Buckets: queueBuckets,
			Help: "[BETA] How long in seconds processing an item from workqueue takes.",
		}),
	}
}

func (s *queueStats) collect(ch chan<- prometheus.Metric, now time.Time) {
	var depth int
	var unfinished, longest time.Duration
	if l := s.loop.Load(); l != nil {
		depth = l.queue.Len()
		for i := range l.began {
			ns := l.began[i].Load()
			if ns == 0 {
				continue
			}
			d := max(0, now.Sub(time.Unix(0, ns)))
			unfinished += d
			longest = max(longest, d)
		}
	}
	put := func(d *prometheus.Desc, kind prometheus.ValueType, v float64) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, s.name)
	}
	put(depthDesc, prometheus.GaugeValue, float64(depth))
	put(addsDesc, prometheus.CounterValue, float64(s.adds.Load()))
	put(retriesDesc, prometheus.CounterValue, float64(s.retries.Load()))
	put(unfinishedDesc, prometheus.GaugeValue, unfinished.Seconds())
	put(longestDesc, prometheus.GaugeValue, longest.Seconds())
	s.wait.Collect(ch)
	s.work.Collect(ch)
}

// queueMetrics are the measurements of this process's queues, by name.
type queueMetrics struct {
	register sync.Once
	mu       sync.Mutex
	named    map[string]*queueStats
}

var queues queueMetrics

// of returns the measurements of a name, which are on the metrics page from then on.
func (q *queueMetrics) of(name string) *queueStats {
	q.register.Do(func() { legacyregistry.RawMustRegister(q) })
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.named == nil {
		q.named = map[string]*queueStats{}
	}
	s := q.named[name]
	if s == nil {
		s = newQueueStats(name)
		q.named[name] = s
	}
	return s
}

// Describe tells of no family, since the libraries describe them.
func (q *queueMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (q *queueMetrics) Collect(ch chan<- prometheus.Metric) {
	q.mu.Lock()
	all := slices.Collect(maps.Values(q.named))
	q.mu.Unlock()
	now := time.Now()
	for _, s := range all {
		s.collect(ch, now)
	}
}

// keys is the order of a work queue, first in, first out, measured. The work
// queue calls it under its lock.
type keys struct {
	stats *queueStats
	list  []queuedKey
}

type queuedKey struct {
	key   string
	since time.Time
}

// Touch implements workqueue.Queue, as do the following.
func (k *keys) Touch(string) {}

// Push takes a key that is not in the queue.
func (k *keys) Push(key string) {
	k.stats.adds.Add(1)
	k.list = append(k.list, queuedKey{key, time.Now()})
}

// Len is the number of keys.
func (k *keys) Len() int { return len(k.list) }

// Pop takes the first key out.
func (k *keys) Pop() string {
	first := k.list[0]
	k.list[0] = queuedKey{} // for the garbage collector
	k.list = k.list[1:]
	k.stats.wait.Observe(time.Since(first.since).Seconds())
	return first.key
}
