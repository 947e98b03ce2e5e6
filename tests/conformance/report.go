package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// The states of a spec in the record.
const (
	passed = "pass"
	failed = "fail"
	skip   = "skip"
	notRun = "not-run"
)

type result struct {
	state   string
	seconds int
	message string // why it failed or was skipped
}

// record is the last result of each spec by its name.
type record map[string]result

// conformanceSpecs reads upstream's list of the conformance specs.
func conformanceSpecs(cache string) ([]spec, error) {
	data, err := os.ReadFile(filepath.Join(cache, "src", "test", "conformance", "testdata", "conformance.yaml"))
	if err != nil {
		return nil, err
	}
	var list []struct{ Codename string }
	if err := yaml.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("list of conformance specs: %w", err)
	}
	specs := make([]spec, len(list))
	for i, s := range list {
		specs[i].name = s.Codename
	}
	return specs, nil
}

// readRecord reads lines of name, state and seconds, separated by tabs. A
// missing file is an empty record.
func readRecord(file string) (record, error) {
	r := record{}
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(data)) {
		f := strings.Split(strings.TrimSpace(line), "\t")
		if len(f) != 3 {
			return nil, fmt.Errorf("%s: bad line %q", file, line)
		}
		seconds, err := strconv.Atoi(f[2])
		if err != nil {
			return nil, fmt.Errorf("%s: bad line %q", file, line)
		}
		r[f[0]] = result{state: f[1], seconds: seconds}
	}
	return r, nil
}

func (r record) write(file string) error {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(r)) {
		fmt.Fprintf(&b, "%s\t%s\t%d\n", name, r[name].state, r[name].seconds)
	}
	return os.WriteFile(file, []byte(b.String()), 0o644)
}

// readReport reads ginkgo's report. It leaves out what did not run: a skip
// without a message is the focus, and what was interrupted says nothing.
func readReport(file string) (record, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts []string
			LeafNodeType            string
			LeafNodeText            string
			State                   string
			RunTime                 int64 // nanoseconds
			Failure                 struct{ Message string }
		}
	}
	if err := json.Unmarshal(data, &suites); err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	ran := record{}
	for _, suite := range suites {
		for _, s := range suite.SpecReports {
			res := result{seconds: int(math.Round(float64(s.RunTime) / 1e9)), message: s.Failure.Message}
			switch {
			case s.LeafNodeType != "It" && s.State == "failed":
				return nil, fmt.Errorf("%s of the suite failed: %s", s.LeafNodeType, s.Failure.Message)
			case s.LeafNodeType != "It" || s.State == "interrupted" || s.State == "pending" ||
				s.State == "aborted" || s.State == "timedout":
				continue
			case s.State == "skipped" && s.Failure.Message == "":
				continue
			case s.State == "skipped":
				res.state = skip
			case s.State == "passed":
				res.state = passed
			default:
				res.state = failed
			}
			ran[strings.Join(append(slices.Clone(s.ContainerHierarchyTexts), s.LeafNodeText), " ")] = res
		}
	}
	return ran, nil
}

// merge is the record with the results of a run, and a line for all specs.
func merge(all []spec, old, ran record) record {
	merged := record{}
	for _, s := range all {
		merged[s.name] = result{state: notRun}
		if r, ok := old[s.name]; ok {
			merged[s.name] = r
		}
	}
	maps.Copy(merged, ran)
	return merged
}

// changes says which specs have another state than the record.
func changes(old, ran record) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(ran)) {
		if was := cmp.Or(old[name].state, notRun); was != ran[name].state {
			fmt.Fprintf(&b, "%s -> %s: %s\n", was, ran[name].state, name)
		}
	}
	return b.String()
}

var sig = regexp.MustCompile(`^\[(sig-[a-z-]+)\]`)

// table counts the states by special interest group, as a table in Markdown.
func (r record) table() string {
	counts, total := map[string]map[string]int{}, map[string]int{}
	for name, res := range r {
		group := "other"
		if m := sig.FindStringSubmatch(name); m != nil {
			group = m[1]
		}
		if counts[group] == nil {
			counts[group] = map[string]int{}
		}
		counts[group][res.state]++
		total[res.state]++
	}
	var b strings.Builder
	b.WriteString("| group | pass | fail | skip | not run |\n|---|---|---|---|---|\n")
	row := func(group string, n map[string]int) {
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d |\n", group, n[passed], n[failed], n[skip], n[notRun])
	}
	for _, group := range slices.Sorted(maps.Keys(counts)) {
		row(group, counts[group])
	}
	row("all", total)
	return b.String()
}

const beginTable, endTable = "<!-- totals: written by make conformance -->\n", "<!-- end of totals -->\n"

// writeFailures writes the failures' messages, for the one who looks for causes.
func writeFailures(file string, ran record) error {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(ran)) {
		if ran[name].state == failed {
			fmt.Fprintf(&b, "%s\n%s\n\n", name, ran[name].message)
		}
	}
	return os.WriteFile(file, []byte(b.String()), 0o644)
}

// readList reads names, one a line; # starts a comment.
func readList(file string) ([]string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var names []string
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			names = append(names, line)
		}
	}
	if names == nil {
		return nil, fmt.Errorf("%s names no spec", file)
	}
	return names, nil
}

func allPassed(names []string, ran record) error {
	var bad []string
	for _, name := range names {
		if r := ran[name]; r.state != passed {
			bad = append(bad, fmt.Sprintf("%s: %s\n%s", cmp.Or(r.state, notRun), name, r.message))
		}
	}
	if bad != nil {
		return fmt.Errorf("%d of %d specs did not pass:\n%s", len(bad), len(names), strings.Join(bad, "\n"))
	}
	fmt.Printf("all %d specs passed\n", len(names))
	return nil
}
