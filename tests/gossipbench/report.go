package main

import (
	"fmt"
	"io"
	"slices"
	"syscall"
	"text/tabwriter"
	"time"
)

// report gathers distributions and lines, and prints them.
type report struct {
	names   []string
	samples map[string][]time.Duration
	lines   []string
}

func newReport() *report { return &report{samples: map[string][]time.Duration{}} }

func (r *report) add(name string, d time.Duration) {
	if _, ok := r.samples[name]; !ok {
		r.names = append(r.names, name)
	}
	r.samples[name] = append(r.samples[name], d)
}

func (r *report) line(format string, args ...any) {
	r.lines = append(r.lines, fmt.Sprintf(format, args...))
}

func (r *report) print(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "seconds\tsamples\tmedian\tp90\tp99\tmax")
	for _, name := range r.names {
		s := slices.Sorted(slices.Values(r.samples[name]))
		fmt.Fprintf(t, "%s\t%d\t%.2f\t%.2f\t%.2f\t%.2f\n", name, len(s), quantile(s, 0.5).Seconds(),
			quantile(s, 0.9).Seconds(), quantile(s, 0.99).Seconds(), s[len(s)-1].Seconds())
	}
	_ = t.Flush()
	for _, l := range r.lines {
		fmt.Fprintln(w, l)
	}
}

// quantile is the smallest of the sorted samples that the share q is not above.
func quantile(sorted []time.Duration, q float64) time.Duration {
	i := int(q*float64(len(sorted)) + 0.999999)
	return sorted[min(max(i, 1), len(sorted))-1]
}

// processorTime is what this process used until now.
func processorTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
