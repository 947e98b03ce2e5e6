package metrics

import (
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// DefaultBuckets are those of Prometheus's libraries, for durations in seconds.
var DefaultBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

// Exponential are n bounds, the first one start, each the one before times factor.
func Exponential(start, factor float64, n int) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = start
		start *= factor
	}
	return out
}

// vec holds a value of type T for each combination of labels' values. Who counts
// bounds these: they are codes, kinds and names of a list, nothing that a caller
// makes up.
type vec[T any] struct {
	name, help string
	labels     []string

	mu sync.Mutex
	by map[string]*T
}

const separator = "\xff"

// of returns the value for labels' values. New ones are made by fill.
func (v *vec[T]) of(values []string, fill func() *T) *T {
	key := strings.Join(values, separator)
	v.mu.Lock()
	defer v.mu.Unlock()
	x := v.by[key]
	if x == nil {
		x = fill()
		if v.by == nil {
			v.by = map[string]*T{}
		}
		v.by[key] = x
	}
	return x
}

// each calls f in order, with names and values of labels.
func (v *vec[T]) each(f func(labels []string, x *T)) {
	v.mu.Lock()
	by := maps.Clone(v.by)
	v.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(by)) {
		var labels []string
		if len(v.labels) > 0 {
			for i, value := range strings.Split(key, separator) {
				labels = append(labels, v.labels[i], value)
			}
		}
		f(labels, by[key])
	}
}

// Counts is a family of counters. A nil one counts nothing.
type Counts struct{ vec[atomic.Uint64] }

// NewCounts makes a family; without labels it has a counter from the start.
func NewCounts(name, help string, labels ...string) *Counts {
	c := &Counts{vec[atomic.Uint64]{name: name, help: help, labels: labels}}
	if len(labels) == 0 {
		c.Add(0)
	}
	return c
}

// Inc adds one to the counter of labels' values.
func (c *Counts) Inc(values ...string) { c.Add(1, values...) }

// Increment adds one to a counter without labels.
func (c *Counts) Increment() { c.Add(1) }

// Add adds to the counter of labels' values.
func (c *Counts) Add(n uint64, values ...string) {
	if c != nil {
		c.of(values, func() *atomic.Uint64 { return new(atomic.Uint64) }).Add(n)
	}
}

// Preset has the counters of these values of the one label, 0 until they count.
func (c *Counts) Preset(values ...string) *Counts {
	for _, v := range values {
		c.Add(0, v)
	}
	return c
}

// Show puts the family on a page.
func (c *Counts) Show(p *Page) {
	f := p.Family(c.name, Counter, c.help)
	c.each(func(labels []string, n *atomic.Uint64) { f.Put(float64(n.Load()), labels...) })
}

// Durations is a family of histograms. A nil one counts nothing.
type Durations struct {
	vec[histogram]
	bounds []float64
}

type histogram struct {
	mu sync.Mutex
	Buckets
}

// Buckets are the counts of one histogram, by bounds that its users keep: nobody
// else may use it at the same time. The zero one is empty.
type Buckets struct {
	counts []uint64 // for each bound, and the rest
	sum    float64
}

// Observe counts a duration.
func (b *Buckets) Observe(bounds []float64, took time.Duration) {
	if b.counts == nil {
		b.counts = make([]uint64, len(bounds)+1)
	}
	i, _ := slices.BinarySearch(bounds, took.Seconds())
	b.counts[i]++
	b.sum += took.Seconds()
}

// Clone is what they are now.
func (b *Buckets) Clone() Buckets { return Buckets{slices.Clone(b.counts), b.sum} }

// PutBuckets writes a histogram with the same bounds.
func (f *Family) PutBuckets(bounds []float64, b Buckets, labels ...string) {
	if b.counts == nil {
		b.counts = make([]uint64, len(bounds)+1)
	}
	total := uint64(0)
	for i, n := range b.counts {
		total += n
		bound := math.Inf(1)
		if i < len(bounds) {
			bound = bounds[i]
		}
		f.sample(f.name+"_bucket", float64(total), time.Time{}, append(slices.Clip(labels), "le", number(bound)))
	}
	f.sample(f.name+"_sum", b.sum, time.Time{}, labels)
	f.sample(f.name+"_count", float64(total), time.Time{}, labels)
}

// NewDurations makes a family; without labels it has a histogram from the start.
func NewDurations(name, help string, bounds []float64, labels ...string) *Durations {
	d := &Durations{vec: vec[histogram]{name: name, help: help, labels: labels}, bounds: bounds}
	if len(labels) == 0 {
		d.histogram(nil)
	}
	return d
}

func (d *Durations) histogram(values []string) *histogram {
	return d.of(values, func() *histogram { return &histogram{} })
}

// Preset has the histograms of these values of the one label, empty until they count.
func (d *Durations) Preset(values ...string) *Durations {
	for _, v := range values {
		d.histogram([]string{v})
	}
	return d
}

// Observe counts a duration for labels' values.
func (d *Durations) Observe(took time.Duration, values ...string) {
	if d == nil {
		return
	}
	h := d.histogram(values)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Buckets.Observe(d.bounds, took)
}

// Since counts the time since begin.
func (d *Durations) Since(begin time.Time, values ...string) { d.Observe(time.Since(begin), values...) }

// Show puts the family on a page.
func (d *Durations) Show(p *Page) {
	f := p.Family(d.name, Histogram, d.help)
	d.each(func(labels []string, h *histogram) {
		h.mu.Lock()
		now := h.Clone()
		h.mu.Unlock()
		f.PutBuckets(d.bounds, now, labels...)
	})
}
