package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/shoal-project/shoal/tests/bench/measure"
	"github.com/shoal-project/shoal/tests/upstream"
)

// line is one line of the table: the values of each system, one a round.
type line struct {
	What, Unit string
	Rate       bool // more is better
	Values     map[string]map[int]float64
	// Step orders the lines of several runs, At is when each system was measured.
	Step int
	At   map[string]time.Time
}

// recorder collects the values of all rounds, and of earlier runs.
type recorder struct {
	Lines []*line
	// Details are the PSS of each program.
	Details []*line

	system string
	round  int
	step   int
	began  time.Time
}

func newRecorder() *recorder { return &recorder{began: time.Now()} }

// load takes the results of earlier runs, if there are any. What is measured
// again replaces them.
func (r *recorder) load(file string) error {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, r); err != nil {
		return fmt.Errorf("results of earlier runs: %s: %w; remove the file to begin anew", file, err)
	}
	for _, l := range slices.Concat(r.Lines, r.Details) {
		if l.Values == nil || l.At == nil {
			return fmt.Errorf("results of earlier runs: %s is of an older form; remove it to begin anew", file)
		}
	}
	return nil
}

func (r *recorder) save(file string) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o644)
}

func (r *recorder) begin(system string, round int) {
	r.system, r.round = system, round
	fmt.Printf("--- %s, round %d (%s since the start)\n", system, round+1, time.Since(r.began).Round(time.Second))
}

// cost records a value of which less is better, rate one of which more is.
func (r *recorder) cost(what, unit string, v float64) { r.add(what, unit, false, v) }
func (r *recorder) rate(what, unit string, v float64) { r.add(what, unit, true, v) }

func (r *recorder) add(what, unit string, rate bool, v float64) {
	r.set(&r.Lines, line{What: what, Unit: unit, Rate: rate}, v)
	fmt.Printf("%s: %s: %s %s\n", r.system, what, number(v), unit)
}

// detail records the memory of each program for a table of its own.
func (r *recorder) detail(when string, w weights) {
	for name, mb := range w {
		r.set(&r.Details, line{What: when + ": " + name, Unit: "MB"}, mb)
	}
}

// set gives a line of a table this round's value.
func (r *recorder) set(table *[]*line, as line, v float64) {
	i := slices.IndexFunc(*table, func(l *line) bool { return l.What == as.What })
	if i < 0 {
		i = len(*table)
		as.Values, as.At = map[string]map[int]float64{}, map[string]time.Time{}
		*table = append(*table, &as)
	}
	l := (*table)[i]
	l.Step = r.step
	if l.At[r.system].Before(r.began) {
		l.At[r.system], l.Values[r.system] = time.Now(), map[int]float64{}
	}
	l.Values[r.system][r.round] = v
}

// ratios are, a round each, how many times better Shoal is: upstream's cost by
// Shoal's, or Shoal's rate by upstream's.
func (l *line) ratios() measure.Sample {
	var s measure.Sample
	for round, ours := range l.Values[shoalName] {
		theirs, ok := l.Values[peerName][round]
		switch {
		case !ok || ours == 0 || theirs == 0:
		case l.Rate:
			s = append(s, ours/theirs)
		default:
			s = append(s, theirs/ours)
		}
	}
	return s
}

func (l *line) cell(system string) string {
	var s measure.Sample
	for _, v := range l.Values[system] {
		s = append(s, v)
	}
	return spread(s)
}

// spread prints a median, with the range where there is one.
func spread(s measure.Sample) string {
	switch {
	case len(s) == 0:
		return ""
	case len(s) == 1:
		return number(s[0])
	}
	return fmt.Sprintf("%s (%s..%s)", number(s.Median()), number(s.Min()), number(s.Max()))
}

// number prints three digits, and no exponent.
func number(v float64) string {
	if v >= 1000 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// earlier counts the lines of which this run has measured nothing, or only one
// of two systems.
func (r *recorder) earlier() (n int, since time.Time) {
	for _, l := range r.Lines {
		oldest := r.began
		for _, at := range l.At {
			if at.Before(oldest) {
				oldest = at
			}
		}
		if oldest.Before(r.began) {
			n++
			if since.IsZero() || oldest.Before(since) {
				since = oldest
			}
		}
	}
	return n, since
}

// table is the whole result in Markdown.
func (r *recorder) table() string {
	var b strings.Builder
	load, _ := os.ReadFile("/proc/loadavg") // only a hint for the reader
	fmt.Fprintf(&b, "%d CPUs, %s; load average at the end %s. Shoal and upstream %s in turns.", runtime.NumCPU(),
		r.began.Format("2 January 2006, 15:04"),
		strings.Join(strings.Fields(string(load))[:min(3, len(strings.Fields(string(load))))], " "), upstream.Version)
	if n, since := r.earlier(); n > 0 {
		fmt.Fprintf(&b, " %d of the lines are of earlier runs, since %s.", n, since.Format("2 January, 15:04"))
	}
	b.WriteString("\n\n")
	slices.SortStableFunc(r.Lines, func(x, y *line) int { return x.Step - y.Step })
	b.WriteString("| what | unit | Shoal | upstream | Shoal is better by |\n|---|---|---|---|---|\n")
	for _, l := range r.Lines {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", l.What, l.Unit, l.cell(shoalName),
			l.cell(peerName), spread(l.ratios()))
	}
	if len(r.Details) > 0 {
		b.WriteString("\nPSS of every program, all its processes together:\n\n| when: program | Shoal | upstream |\n|---|---|---|\n")
	}
	slices.SortStableFunc(r.Details, func(x, y *line) int { return strings.Compare(x.What, y.What) })
	for _, l := range r.Details {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", l.What, l.cell(shoalName), l.cell(peerName))
	}
	return b.String()
}
