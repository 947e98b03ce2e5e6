package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/shoal-project/shoal/tests/page"
)

const (
	// wideResults is the record of the specs that -labels chooses.
	wideResults = "tests/conformance/wide.txt"
	// serialResults is that of the specs that have to be alone.
	serialResults = "tests/conformance/serial.txt"
	// storageResults is that of the specs of storage, which run on machines.
	storageResults = "tests/conformance/storage.txt"
	// devicesResults is that of the specs of devices' drivers, which run on machines too.
	devicesResults = "tests/conformance/devices.txt"
	// dualStackResults is that of the specs of clusters with both address families.
	dualStackResults = "tests/conformance/dualstack.txt"
	// loadBalancerResults is that of the specs of Services of type LoadBalancer.
	loadBalancerResults = "tests/conformance/loadbalancer.txt"
	// causesFile knows why some of them cannot pass.
	causesFile = "tests/conformance/causes.txt"
	// outsideCauses knows more on a containerd.
	outsideCauses = "tests/conformance/causescontainerd.txt"
)

// What comes before the totals of each record in the documentation.
const (
	beginWide    = "<!-- totals of other specs: written by make conformance LABELS=… -->\n"
	beginSerial  = "<!-- totals of serial specs: written by make conformance LABELS=serial -->\n"
	beginStorage = "<!-- totals of storage: written by make conformance LABELS=storage -->\n"
	beginDevices = "<!-- totals of devices: written by make conformance LABELS=devices -->\n"

	beginLoadBalancer = "<!-- totals of load balancers: written by make conformance LABELS=loadbalancer -->\n"

	beginDualStack = "<!-- totals of dual stack: written by make conformance LABELS=dualstack -->\n"
)

// labelSets are names for label filters: the specs of features that are on by
// default, which need no cloud and no feature of their own. Those that have to be
// alone, and those that take long, are runs of their own.
var labelSets = map[string]string{
	"default": "!Conformance && !Flaky && !Slow && !Serial && !Disruptive && Feature: isEmpty",
	"serial":  "!Conformance && !Flaky && !Slow && Serial && !Disruptive && Feature: isEmpty",
	"slow":    "!Conformance && !Flaky && Slow && !Disruptive && Feature: isEmpty",
	// Specs of a driver that a file describes are of no group.
	"storage": "(sig-storage || !/^sig-/) && !Conformance && !Flaky && !Slow && !Serial && !Disruptive" +
		" && Feature: isSubsetOf {VolumeSnapshotDataSource, volumegroupsnapshot}",
	"devices": "Feature: containsAny DynamicResourceAllocation && !Feature: containsAny OffByDefault && !Alpha && !Flaky" +
		" && !Slow && !Serial",
	"dualstack":    "Feature: containsAny IPv6DualStack && !Flaky && !Disruptive",
	"loadbalancer": "Feature: containsAny LoadBalancer && !Flaky && !Disruptive",
}

// dualStack tells whether the cluster has both address families.
func (o options) dualStack() bool { return o.labels == "dualstack" }

// loadBalancer tells whether the cluster has addresses for load balancers, and the suite runs
// on a machine beside it, as a load balancer's clients do.
func (o options) loadBalancer() bool { return o.labels == "loadbalancer" }

// storage tells whether the specs of storage run: on nodes that are machines, with
// the programs of drivers.
func (o options) storage() bool { return o.labels == "storage" }

// machines tells whether the nodes have to be machines: whose programs look below
// /var/lib/kubelet.
func (o options) machines() bool { return o.storage() || o.labels == "devices" }

// outside tells whether the node's runtime is not the agent's own.
func (o options) outside() bool { return o.containerd || o.criproxy }

// wideRecord is the record of the specs that -labels chooses, and what comes before
// its totals in the documentation.
func (o options) wideRecord() (file, begin string) {
	if o.outside() {
		return outsideResults, beginOutside
	}
	if o.node {
		return nodeResults, beginNode
	}
	switch o.labels {
	case "serial":
		return serialResults, beginSerial
	case "storage":
		return storageResults, beginStorage
	case "devices":
		return devicesResults, beginDevices
	case "dualstack":
		return dualStackResults, beginDualStack
	case "loadbalancer":
		return loadBalancerResults, beginLoadBalancer
	}
	return wideResults, beginWide
}

// labelFilter is the filter that -labels means; without it, conformance.
func (o options) labelFilter() string {
	if o.labels == "" && o.standalone {
		return "Feature: containsAny StandaloneMode"
	}
	if o.labels == "" && o.criproxy {
		return proxySpecs
	}
	if o.labels == "" && o.node {
		return nodeSpecs
	}
	if o.labels == "" {
		return "Conformance"
	}
	if set, ok := labelSets[o.labels]; ok {
		return set
	}
	return o.labels
}

// spec is one of those that a label filter chooses.
type spec struct {
	name  string
	group string // what it is counted with
}

// wideSpecs lists the specs that o chooses but for its focus, by a dry run.
func wideSpecs(ctx context.Context, cache string, o options) ([]spec, error) {
	dir, err := os.MkdirTemp("", "specs")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	report := filepath.Join(dir, "specs.json")
	program, args := "e2e.test", append(o.externalDriver(), "--provider=local")
	if o.node {
		program, args = "e2e_node.test", nil
	}
	cmd := exec.CommandContext(ctx, filepath.Join(cache, program), "--ginkgo.dry-run", "--ginkgo.no-color",
		"--ginkgo.silence-skips", "--ginkgo.succinct", "--ginkgo.label-filter="+o.labelFilter(),
		"--ginkgo.skip="+o.skip, "--ginkgo.json-report="+report, "--report-dir="+dir)
	cmd.Args = append(cmd.Args, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("list the specs of %q: %w: %s", o.labelFilter(), err, out[max(0, len(out)-2000):])
	}
	data, err := os.ReadFile(report)
	if err != nil {
		return nil, err
	}
	specs, err := chosenSpecs(data)
	if err == nil && len(specs) == 0 {
		err = fmt.Errorf("the labels %q choose no spec", o.labelFilter())
	}
	return specs, err
}

// chosenSpecs reads the report of a dry run, in which chosen specs pass.
func chosenSpecs(data []byte) ([]spec, error) {
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts  []string
			ContainerHierarchyLabels [][]string
			LeafNodeType             string
			LeafNodeText             string
			LeafNodeLabels           []string
			State                    string
		}
	}
	if err := json.Unmarshal(data, &suites); err != nil {
		return nil, fmt.Errorf("read the list of specs: %w", err)
	}
	var specs []spec
	for _, suite := range suites {
		for _, s := range suite.SpecReports {
			if s.LeafNodeType != "It" || s.State != "passed" {
				continue
			}
			labels := slices.Concat(append(s.ContainerHierarchyLabels, s.LeafNodeLabels)...)
			texts := append(slices.Clone(s.ContainerHierarchyTexts), s.LeafNodeText)
			specs = append(specs, spec{strings.Join(texts, " "), group(texts[0], labels)})
		}
	}
	return specs, nil
}

var tags = regexp.MustCompile(` ?\[[A-Za-z:]+\]`)

// group is what a spec is counted with: its features, or where it has none the
// subject that it is written under.
func group(subject string, labels []string) string {
	var features []string
	for _, l := range labels {
		if strings.HasPrefix(l, "Feature:") || strings.HasPrefix(l, "FeatureGate:") {
			features = append(features, l)
		}
	}
	if features != nil {
		slices.Sort(features)
		return strings.Join(slices.Compact(features), " ")
	}
	special := sig.FindString(subject)
	return special + tags.ReplaceAllString(strings.TrimPrefix(subject, special), "")
}

// readWide reads lines of state, name and, where there is one, cause, separated
// by tabs. A missing file is an empty record.
func readWide(file string) (record, error) {
	r := record{}
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(data)) {
		f := strings.SplitN(strings.TrimRight(line, "\n"), "\t", 3)
		if len(f) < 2 {
			return nil, fmt.Errorf("%s: bad line %q", file, line)
		}
		res := result{state: f[0]}
		if len(f) == 3 {
			res.message = f[2]
		}
		r[f[1]] = res
	}
	return r, nil
}

func (r record) writeWide(file string) error {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(r)) {
		fmt.Fprintf(&b, "%s\t%s", r[name].state, name)
		if r[name].message != "" {
			b.WriteString("\t" + r[name].message)
		}
		b.WriteString("\n")
	}
	return os.WriteFile(file, []byte(b.String()), 0o644)
}

// cause is why specs whose names match cannot pass.
type cause struct {
	specs *regexp.Regexp
	why   string
}

type causes []cause

// readCauses reads lines of a regular expression and a cause, separated by a tab.
func readCauses(file string) (causes, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var all causes
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		expr, why, ok := strings.Cut(line, "\t")
		re, err := regexp.Compile(expr)
		if !ok || err != nil {
			return nil, fmt.Errorf("%s: %q is not a regular expression, a tab and a cause: %w", file, line, err)
		}
		all = append(all, cause{re, strings.TrimSpace(why)})
	}
	return all, nil
}

// ofOwnRuntime begins the causes that another runtime takes away.
const ofOwnRuntime = "the runtime is part of the agent"

func (c causes) withoutOwnRuntime() causes {
	return slices.DeleteFunc(slices.Clone(c), func(one cause) bool { return strings.HasPrefix(one.why, ofOwnRuntime) })
}

func (c causes) of(name string) string {
	for _, one := range c {
		if one.specs.MatchString(name) {
			return one.why
		}
	}
	return ""
}

// explain gives what did not pass its cause in one line. It returns the names of
// those that failed for no known one.
func (c causes) explain(ran record) (unknown []string) {
	for name, res := range ran {
		why := ""
		switch res.state {
		case failed:
			if why = c.of(name); why == "" {
				why = oneLine(res.message)
				unknown = append(unknown, name)
			}
		case skip:
			why = oneLine(res.message)
		}
		res.message = why
		ran[name] = res
	}
	slices.Sort(unknown)
	return unknown
}

var (
	space   = regexp.MustCompile(`\s+`)
	ephemer = regexp.MustCompile(`0x[0-9a-f]+`)
	cached  = regexp.MustCompile(`[^\s'"]*/bin/conformance/`)
)

// causeLength is the length of a cause that is taken from a failure's message.
const causeLength = 200

func oneLine(message string) string {
	line := strings.TrimSpace(ephemer.ReplaceAllString(space.ReplaceAllString(message, " "), "0x…"))
	line = cached.ReplaceAllString(line, "bin/conformance/")
	if r := []rune(line); len(r) > causeLength {
		line = string(r[:causeLength]) + "…"
	}
	return line
}

// wideTable counts the states by group, as lines of text.
func wideTable(specs []spec, r record) string {
	counts := map[string]map[string]int{}
	count := func(group, state string) {
		if counts[group] == nil {
			counts[group] = map[string]int{}
		}
		counts[group][state]++
	}
	for _, s := range specs {
		if state := r[s.name].state; state != "" { // no result is kept of all that could run on containerd
			count(s.group, state)
			count("~all", state) // sorts last
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%6s %6s %6s %8s  %s\n", passed, failed, skip, notRun, "feature or subject")
	for _, g := range slices.Sorted(maps.Keys(counts)) {
		n := counts[g]
		fmt.Fprintf(&b, "%6d %6d %6d %8d  %s\n", n[passed], n[failed], n[skip], n[notRun], strings.TrimPrefix(g, "~"))
	}
	return b.String()
}

// recordWide merges what a run gave into the record of the wide specs and prints
// what changed and the totals. Failures without a known cause are an error.
func (o options) recordWide(specs []spec, ran record) error {
	known, err := readCauses(causesFile)
	if err != nil {
		return err
	}
	if o.outside() {
		own, err := readCauses(outsideCauses)
		if err != nil {
			return err
		}
		known = append(own, known.withoutOwnRuntime()...)
	}
	unknown := known.explain(ran)
	file, begin := o.wideRecord()
	old, err := readWide(file)
	if err != nil {
		return err
	}
	merged := maps.Clone(old)
	for _, s := range specs {
		if _, ok := merged[s.name]; !ok && !o.containerd { // where only some are run
			merged[s.name] = result{state: notRun}
		}
	}
	maps.Copy(merged, ran)
	fmt.Print(changes(old, ran))
	fmt.Print(wideTable(specs, merged))
	if err := merged.writeWide(file); err != nil {
		return err
	}
	if err := page.Replace(docsPage, begin, endTable, merged.table()); err != nil {
		return err
	}
	if unknown != nil {
		return fmt.Errorf("%d specs failed for no cause that %s knows:\n%s", len(unknown), causesFile,
			strings.Join(unknown, "\n"))
	}
	return nil
}
