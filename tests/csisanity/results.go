package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// spec is what we read of a spec in ginkgo's report.
type spec struct {
	ContainerHierarchyTexts []string
	LeafNodeType            string
	LeafNodeText            string
	State                   string
	Failure                 struct{ Message string }
}

// results are the states of specs in runs.
type results struct {
	runs   []string
	states map[string]map[string][]string // by spec, by state: the runs
}

func newResults() *results { return &results{states: map[string]map[string][]string{}} }

// add reads the report of a run, and prints how many specs passed.
func (r *results) add(run, report string) error {
	data, err := os.ReadFile(report)
	if err != nil {
		return err
	}
	var suites []struct{ SpecReports []spec }
	if err := json.Unmarshal(data, &suites); err != nil {
		return fmt.Errorf("%s: %w", report, err)
	}
	counts := map[string]int{}
	for _, suite := range suites {
		for _, s := range suite.SpecReports {
			// A skip without a message is the focus.
			if s.LeafNodeType != "It" || s.State == "skipped" && s.Failure.Message == "" {
				continue
			}
			state := s.State
			counts[state]++
			if s.State == "skipped" {
				state += " (" + s.Failure.Message + ")"
			}
			name := strings.Join(append(slices.Clone(s.ContainerHierarchyTexts), s.LeafNodeText), " ")
			if r.states[name] == nil {
				r.states[name] = map[string][]string{}
			}
			r.states[name][state] = append(r.states[name][state], run)
		}
	}
	r.runs = append(r.runs, run)
	if counts["passed"] == 0 {
		return fmt.Errorf("%s: no spec passed", run)
	}
	total := 0
	for _, n := range counts {
		total += n
	}
	fmt.Printf("%-12s %d passed, %d failed, %d skipped, %d pending\n", run, counts["passed"],
		total-counts["passed"]-counts["skipped"]-counts["pending"], counts["skipped"], counts["pending"])
	return nil
}

// lines has one line a spec and state, with the runs where they are not all.
func (r *results) lines() []string {
	lines := []string{"runs (disk/volumes): " + strings.Join(r.runs, " ")}
	for _, name := range slices.Sorted(maps.Keys(r.states)) {
		for _, state := range slices.Sorted(maps.Keys(r.states[name])) {
			line := name + ": " + state
			if runs := r.states[name][state]; len(runs) < len(r.runs) {
				line += " on " + strings.Join(runs, " ")
			}
			lines = append(lines, line)
		}
	}
	return lines
}

func (r *results) write(file string) error {
	return os.WriteFile(file, []byte(strings.Join(r.lines(), "\n")+"\n"), 0o644)
}
