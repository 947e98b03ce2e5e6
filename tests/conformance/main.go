package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/shoal-project/shoal/tests/page"
)

// results is the record that a run's results are merged into.
const (
	results  = "tests/conformance/results.txt"
	docsPage = "docs/conformance.md"
)

type options struct {
	bin, report       string
	focus, skip, list string
	labels            string
	node, netpol      bool
	standalone        bool
	containerd        bool
	criproxy          bool
	archives          string
	failed, missing   bool
	keep, build       bool
	nodes, zones      int
	jobs              int
	timeout           time.Duration
}

func main() {
	if code, ok := called(filepath.Base(os.Args[0]), os.Args[1:]); ok {
		os.Exit(code)
	}
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "directory of the product's programs; the suite is built into bin/conformance")
	flag.StringVar(&o.report, "report", "bin/conformance/report", "directory of the log, the reports and the failures' messages")
	flag.StringVar(&o.focus, "focus", os.Getenv("FOCUS"), "regular expression of the specs to run; default FOCUS")
	flag.StringVar(&o.skip, "skip", os.Getenv("SKIP"), "regular expression of the specs to leave out; default SKIP")
	flag.StringVar(&o.labels, "labels", os.Getenv("LABELS"), "ginkgo's label filter of the specs to run in place of the "+
		"conformance specs, \"default\", \"serial\", \"slow\", \"devices\", \"dualstack\", \"loadbalancer\" or \"storage\"; "+
		"results are recorded in "+wideResults+", those of serial and storage in "+serialResults+" and "+storageResults+
		"; default LABELS")
	flag.BoolVar(&o.node, "node", false, "run upstream's suite of nodes, e2e_node, on one node; results are recorded in "+
		nodeResults)
	flag.BoolVar(&o.standalone, "standalone", false, "with -node, run the specs of a node without an API server on one")
	flag.BoolVar(&o.containerd, "containerd", false, "with -node, run them on a node whose runtime is containerd; results "+
		"are recorded in "+outsideResults)
	flag.BoolVar(&o.criproxy, "criproxy", false, "as -containerd, for the specs with a proxy between agent and runtime")
	flag.BoolVar(&o.netpol, "netpol", false, "run the suite of ClusterNetworkPolicies; -focus is of its tests' names then")
	flag.StringVar(&o.archives, "archives", os.Getenv("ARCHIVES"), "directory of source archives of what specs of "+
		"storage need and the module proxy lacks; default ARCHIVES")
	flag.StringVar(&o.list, "list", "", "file with the names of the specs to run: all have to pass, and nothing is recorded")
	flag.BoolVar(&o.failed, "failed", false, "run what failed according to the record")
	flag.BoolVar(&o.missing, "missing", false, "run what has no result yet according to the record")
	flag.BoolVar(&o.keep, "keep", false, "keep the cluster running at the end")
	flag.BoolVar(&o.build, "build", false, "only build the suite and its images")
	flag.IntVar(&o.nodes, "nodes", 2, "nodes of the cluster")
	flag.IntVar(&o.zones, "zones", 0, "zones that the nodes are spread over; 0 for none")
	flag.IntVar(&o.jobs, "jobs", 4, "specs at the same time, where a spec does not ask to be alone")
	flag.DurationVar(&o.timeout, "timeout", 4*time.Hour, "time after which the run ends; what did not run keeps its recorded result")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	bin, err := filepath.Abs(o.bin)
	if err != nil {
		return err
	}
	cache := filepath.Join(bin, "conformance")
	o.bin = bin
	if err := build(ctx, cache, o); err != nil {
		return err
	}
	if err := o.writeDriverFile(); err != nil {
		return err
	}
	archive, err := pack(cache, bin, o)
	if err != nil || o.build {
		return err
	}
	if o.netpol {
		return o.runNetworkPolicies(ctx, cache, archive)
	}
	specs, old, err := o.specs(ctx, cache)
	if err != nil {
		return err
	}
	names, err := o.chosen(specs, old)
	if err != nil {
		return err
	}
	report, err := filepath.Abs(o.report)
	if err != nil {
		return err
	}
	s := suite{cache: cache, report: report, names: names, options: o}
	c, err := s.start(ctx, archive)
	if err == nil {
		err = s.run(ctx)
	}
	if s.node != nil && !o.keep {
		if serr := s.node.stop(); serr != nil {
			fmt.Fprintln(os.Stderr, "conformance: stop the node:", serr)
		}
	}
	if c != nil && !o.keep {
		if serr := c.Stop(); serr != nil {
			fmt.Fprintln(os.Stderr, "conformance: stop the cluster:", serr)
		}
	}
	if err != nil {
		return err
	}
	return o.record(specs, names, report)
}

// specs are all specs of the record that the run's results belong to, and the
// record.
func (o options) specs(ctx context.Context, cache string) ([]spec, record, error) {
	if o.labels == "" && !o.node {
		specs, err := conformanceSpecs(cache)
		if err != nil {
			return nil, nil, err
		}
		old, err := readRecord(results)
		return specs, old, err
	}
	specs, err := wideSpecs(ctx, cache, o)
	if err != nil {
		return nil, nil, err
	}
	file, _ := o.wideRecord()
	old, err := readWide(file)
	return specs, old, err
}

// chosen are the names of the specs that -list, or -failed and -missing among
// those of -focus, select; none for all.
func (o options) chosen(specs []spec, old record) ([]string, error) {
	if o.list != "" {
		return readList(o.list)
	}
	if !o.failed && !o.missing {
		return nil, nil
	}
	focus, err := regexp.Compile(o.focus)
	if err != nil {
		return nil, fmt.Errorf("-focus: %w", err)
	}
	var names []string
	for _, s := range specs {
		state := cmp.Or(old[s.name].state, notRun)
		if focus.MatchString(s.name) && (o.failed && state == failed || o.missing && state == notRun) {
			names = append(names, s.name)
		}
	}
	if names == nil {
		return nil, errors.New("nothing to run: all of -focus have a result, or none failed")
	}
	return names, nil
}

// record prints what the run gave, merges it into the record and the page of
// the documentation. With -list it only tells what did not pass.
func (o options) record(specs []spec, names []string, report string) error {
	ran, err := readReport(filepath.Join(report, "report.json"))
	if err != nil {
		return err
	}
	if len(ran) == 0 { // so it is after a spec that did not end
		return fmt.Errorf("%s tells of no spec: see e2e.log beside it, and run fewer of them", report)
	}
	if err := writeFailures(filepath.Join(report, "failures.txt"), ran); err != nil {
		return err
	}
	if o.list != "" {
		return allPassed(names, ran)
	}
	if o.labels != "" || o.node {
		return o.recordWide(specs, ran)
	}
	old, err := readRecord(results) // again: another run may have ended meanwhile
	if err != nil {
		return err
	}
	merged := merge(specs, old, ran)
	fmt.Print(changes(old, ran))
	fmt.Print(ran.table())
	if err := merged.write(results); err != nil {
		return err
	}
	return page.Replace(docsPage, beginTable, endTable, merged.table())
}
