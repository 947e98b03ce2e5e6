package main

import "slices"

// sample is the values of one measurement.
type sample []float64

func (s sample) median() float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

func (s sample) min() float64 {
	if len(s) == 0 {
		return 0
	}
	return slices.Min(s)
}

func (s sample) max() float64 {
	if len(s) == 0 {
		return 0
	}
	return slices.Max(s)
}
