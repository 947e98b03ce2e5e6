package main

import (
	"encoding/json"
	"fmt"
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

func (s spec) name() string {
	return strings.Join(append(slices.Clone(s.ContainerHierarchyTexts), s.LeafNodeText), " ")
}

// results are sorted lines, one a spec that was not left out by the focus.
func results(data []byte) (lines []string, counts map[string]int, err error) {
	var suites []struct{ SpecReports []spec }
	if err := json.Unmarshal(data, &suites); err != nil {
		return nil, nil, err
	}
	counts = map[string]int{}
	for _, suite := range suites {
		for _, s := range suite.SpecReports {
			// A skip without a message is the focus or the suite's own choice of
			// what is no benchmark.
			if s.LeafNodeType != "It" || (s.State == "skipped" && s.Failure.Message == "") {
				continue
			}
			counts[s.State]++
			line := s.name() + ": " + s.State
			if s.State == "skipped" {
				line += " (" + s.Failure.Message + ")"
			}
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines, counts, nil
}

func writeResults(report, out string) error {
	data, err := os.ReadFile(report)
	if err != nil {
		return err
	}
	lines, counts, err := results(data)
	if err != nil {
		return fmt.Errorf("%s: %w", report, err)
	}
	fmt.Printf("critest: %d passed, %d failed, %d skipped\n", counts["passed"],
		len(lines)-counts["passed"]-counts["skipped"], counts["skipped"])
	if out == "-" {
		return nil
	}
	return os.WriteFile(out, []byte(strings.Join(lines, "\n")+"\n"), 0o644)
}
