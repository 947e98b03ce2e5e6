// Package measure is what the benches share: values and their spread, memory
// and CPU time of processes, and pods started and deleted on a real node.
package measure

import (
	"slices"
	"time"
)

// Sample is the values of one measurement.
type Sample []float64

// Median is 0 where nothing was measured, as are Min and Max.
func (s Sample) Median() float64 { return s.Quantile(0.5) }

// Quantile is the value below which the part q of the values lies, between
// two values in proportion.
func (s Sample) Quantile(q float64) float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	at := q * float64(len(s)-1)
	low := int(at)
	if low+1 == len(s) {
		return sorted[low]
	}
	return sorted[low] + (at-float64(low))*(sorted[low+1]-sorted[low])
}

// Min is the smallest value.
func (s Sample) Min() float64 {
	if len(s) == 0 {
		return 0
	}
	return slices.Min(s)
}

// Max is the largest value.
func (s Sample) Max() float64 {
	if len(s) == 0 {
		return 0
	}
	return slices.Max(s)
}

// Ms is a time in milliseconds.
func Ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
