// Command bench measures Shoal's speed and weight on this machine and prints
// one table: cold start, a pod's start and where its time goes, many pods at
// once, restarts, deletion, memory and idle CPU. No figure is asserted; the
// targets stand beside them. It needs root and `make all`.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/shoal-project/shoal/tests/bench/measure"
	"github.com/shoal-project/shoal/tests/harness"
	"github.com/shoal-project/shoal/tests/page"
)

func main() {
	runs := flag.Int("runs", 3, "repetitions of each measurement; medians are printed")
	only := flag.Bool("hogs", false, "measure the service beside hogs alone")
	many := flag.Int("crowd", 0, "measure a node with so many pods, alone")
	start := flag.Bool("starts", false, "measure pods' starts and the processor time that they take, alone")
	toPage := flag.Bool("write", false, "write the tables into docs/performance.md as well")
	ip := flag.String("requests", "", "of the bench itself: make requests to the service at this address")
	group := flag.String("group", "", "of the bench itself: be in this control group")
	netns := flag.String("netns", "", "of the bench itself: connect from this network namespace")
	flag.Parse()
	if *ip != "" {
		if err := request(*ip, *group, *netns); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *many > 0 {
		rows, err := crowded(ctx, *many, *runs)
		show(rows, nil)
		if err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	if *start {
		rows, parts, err := startsAlone(ctx, *runs)
		show(rows, parts)
		if err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	if err := run(ctx, *runs, *only, *toPage); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// row is one line of the table.
type row struct {
	what, target, upstream string
	values                 measure.Sample
	unit                   string
}

func run(ctx context.Context, runs int, onlyHogs, toPage bool) error {
	var rows []row
	if !onlyHogs {
		cold, err := coldStarts(max(runs, 5))
		if err != nil {
			return err
		}
		rows = append(rows, row{"cold start to a Ready node", "1.5", "3.8", cold, "s"})
	}
	c, err := prepare("bench")
	if err != nil {
		return err
	}
	if err := c.Up(); err != nil {
		return err
	}
	b := &bench{cluster: c}
	if err := b.connect(); err != nil {
		return errors.Join(err, c.Stop())
	}
	measured := b.all
	if onlyHogs {
		measured = b.hog
	}
	more, err := measured(ctx, runs)
	if err == nil {
		rows = append(rows, more...)
		show(rows, b.phases)
		if toPage {
			err = write(rows, b.phases)
		}
	}
	if stopErr := c.Stop(); err == nil {
		err = stopErr
	}
	return err
}

func coldStarts(runs int) (measure.Sample, error) {
	var s measure.Sample
	for range runs {
		c, err := prepare("cold")
		if err != nil {
			return nil, err
		}
		start := time.Now()
		if err := c.Up(); err != nil {
			return nil, err
		}
		s = append(s, time.Since(start).Seconds())
		if err := c.Stop(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// prepare makes a cluster that has only the example image to import, as a
// user's first one.
func prepare(name string) (*harness.Cluster, error) {
	c, err := harness.Prepare(name)
	if err != nil {
		return nil, err
	}
	// In memory, as /run is on hosts with systemd.
	c.RunDir = filepath.Join("/dev/shm", c.Name)
	archives, err := filepath.Glob(filepath.Join(c.Dir, "images", "*"))
	if err != nil {
		return nil, err
	}
	for _, a := range archives {
		if filepath.Base(a) != "hello.tar" {
			if err := os.Remove(a); err != nil {
				return nil, err
			}
		}
	}
	return c, nil
}

// bench measures one running cluster.
type bench struct {
	cluster *harness.Cluster
	pods    *measure.Pods
	phases  phases
}

// Pods of the steps below.
const (
	oneByOne  = 15
	atOnce    = 30
	crowd     = 80
	deleted   = 40
	crashes   = 5
	idleWatch = 30 * time.Second
	// afterEffects is how long a start or a burst may have after-effects: caches fill,
	// garbage is collected.
	afterEffects = 10 * time.Second
)

func (b *bench) connect() error {
	config, err := b.cluster.RESTConfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	b.pods = &measure.Pods{Client: client, CgroupRoot: b.cluster.Name}
	return err
}

func (b *bench) all(ctx context.Context, runs int) ([]row, error) {
	time.Sleep(afterEffects)
	var rows []row
	idle, err := b.weigh(ctx, runs, idleWatch)
	if err != nil {
		return nil, err
	}
	rows = append(rows,
		row{"idle: coordinator PSS", "120", "590", measure.Sample{idle.coordinator}, "MB"},
		row{"idle: agent PSS", "60", "179", measure.Sample{idle.agent}, "MB"},
		row{"idle: supervisor (shoal up) PSS", "", "", measure.Sample{idle.supervisor}, "MB"},
		row{"idle: CPU of both", "1", "", idle.cpu, "% of a core"})

	single, phases, err := b.oneByOne(ctx, oneByOne)
	if err != nil {
		return nil, err
	}
	b.phases = phases
	rows = append(rows, row{"pod start, one by one", "150", "490", single, "ms"})

	var many, gone measure.Sample
	for range runs {
		_, took, err := b.pods.Together(ctx, atOnce)
		if err != nil {
			return nil, err
		}
		many = append(many, took.Seconds())
		if _, err := b.pods.DeleteAll(ctx); err != nil {
			return nil, err
		}
	}
	rows = append(rows, row{"30 pods at once", "1.5", "3.6", many, "s"})

	restarts, err := b.crash(ctx, crashes)
	if err != nil {
		return nil, err
	}
	rows = append(rows, row{"crashed container is back", "", "500-1000", restarts, "ms"})

	_, took, err := b.pods.Together(ctx, crowd)
	if err != nil {
		return nil, err
	}
	rows = append(rows, row{"80 pods at once", "", "12", measure.Sample{took.Seconds()}, "s"})
	time.Sleep(afterEffects)
	full, err := b.weigh(ctx, runs, idleWatch)
	if err != nil {
		return nil, err
	}
	perPod := (full.total() - idle.total()) / crowd
	rows = append(rows,
		row{"80 pods: CPU of both", "1", "22", full.cpu, "% of a core"},
		row{"80 pods: coordinator PSS", "", "", measure.Sample{full.coordinator}, "MB"},
		row{"80 pods: agent PSS", "", "", measure.Sample{full.agent}, "MB"},
		row{"80 pods: monitors PSS", "", "", measure.Sample{full.monitors}, "MB"},
		row{"weight of a pod beyond its workload", "1", "7", measure.Sample{perPod}, "MB"})
	if _, err := b.pods.DeleteAll(ctx); err != nil {
		return nil, err
	}
	for range runs {
		if _, _, err := b.pods.Together(ctx, deleted); err != nil {
			return nil, err
		}
		took, err := b.pods.DeleteAll(ctx)
		if err != nil {
			return nil, err
		}
		gone = append(gone, took.Seconds())
	}
	rows = append(rows, row{"40 pods deleted, off the node", "1.5", "5.7", gone, "s"})
	hogs, err := b.hog(ctx, runs)
	return append(rows, hogs...), err
}

// tables are what was measured, and where a pod's start goes.
func tables(rows []row, phases phases) [2][][]string {
	figures := func(v measure.Sample) []string {
		return []string{fmt.Sprintf("%.4g", v.Median()), fmt.Sprintf("%.4g", v.Min()), fmt.Sprintf("%.4g", v.Max())}
	}
	all := [][]string{{"what", "median", "min", "max", "unit", "target", "upstream v1.36.3"}}
	for _, r := range rows {
		all = append(all, append(append([]string{r.what}, figures(r.values)...), r.unit, r.target, r.upstream))
	}
	start := [][]string{{"where a pod's start goes, one by one", "median", "min", "max", "unit"}}
	for _, p := range phaseOrder {
		start = append(start, append(append([]string{p}, figures(phases[p])...), "ms"))
	}
	if phases == nil { // no pod was started alone
		start = nil
	}
	return [2][][]string{all, start}
}

func show(rows []row, phases phases) {
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		fmt.Printf("%d CPUs, load average now: %s\n", runtime.NumCPU(), load)
	}
	t := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	for _, table := range tables(rows, phases) {
		for _, line := range table {
			fmt.Fprintln(t, strings.Join(line, "\t"))
		}
		fmt.Fprintln(t)
	}
	_ = t.Flush()
}

// write puts the tables into the documentation.
func write(rows []row, phases phases) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s, %d CPUs, Linux %s:\n", time.Now().UTC().Format("2 January 2006"), runtime.NumCPU(), kernel())
	for _, table := range tables(rows, phases) {
		b.WriteByte('\n')
		for i, line := range table {
			fmt.Fprintf(&b, "| %s |\n", strings.Join(line, " | "))
			if i == 0 {
				b.WriteString(strings.Repeat("|---", len(line)) + "|\n")
			}
		}
	}
	return page.Replace("docs/performance.md", "<!-- bench:begin -->", "<!-- bench:end -->", b.String())
}

func kernel() string {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "of an unknown release"
	}
	return strings.TrimSpace(string(release))
}
