// Command peerbench runs one workload against Shoal and against upstream's
// release of the same API, on this machine and in turns (A B A B), and prints
// how they compare. Upstream is built from the module proxy: etcd,
// kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kube-proxy,
// containerd with runc, the CNI plugins. It needs root, gcc and `make all`.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/shoal-project/shoal/tests/page"
)

type options struct {
	bin, cache   string
	only, on     string
	rounds       int
	sizes        string
	shapes       string
	services     string
	hollow, pods int
	build, write bool
	verbose      bool
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "directory of the product's programs")
	flag.StringVar(&o.cache, "cache", "bin/peer", "directory that upstream's programs are built into and kept in")
	flag.StringVar(&o.only, "only", "", "measure only these, comma-separated: "+strings.Join(stepNames(), ", "))
	flag.StringVar(&o.on, "on", "", "run only one: shoal or upstream")
	flag.IntVar(&o.rounds, "rounds", 2, "how many times each of the two is measured, in turns")
	flag.StringVar(&o.sizes, "nodes", "1000,5000", "numbers of simulated nodes for schedule")
	flag.StringVar(&o.shapes, "shapes", "basic,affinity,anti-affinity,spread,preemption", "shapes of pods for schedule")
	flag.StringVar(&o.services, "services", "1000,10000", "numbers of Services for services")
	flag.IntVar(&o.hollow, "hollow-nodes", 1000, "simulated nodes for hollow")
	flag.IntVar(&o.pods, "hollow-pods", 5000, "pods on the simulated nodes for hollow")
	flag.BoolVar(&o.build, "build", false, "only build upstream")
	flag.BoolVar(&o.write, "write", false, "write the table into "+docsPage)
	flag.BoolVar(&o.verbose, "v", false, "print the ends of the daemons' logs when something fails")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "peerbench:", err)
		os.Exit(1)
	}
}

const (
	docsPage            = "docs/performance.md"
	beginMark, endMark  = "<!-- peer-bench:begin -->\n", "<!-- peer-bench:end -->\n"
	shoalName, peerName = "shoal", "upstream"
)

func run(ctx context.Context, o options) error {
	if os.Geteuid() != 0 {
		return errors.New("whole clusters need root")
	}
	var err error
	if o.bin, err = filepath.Abs(o.bin); err != nil {
		return err
	}
	if o.cache, err = filepath.Abs(o.cache); err != nil {
		return err
	}
	steps, err := chosen(o.only)
	if err != nil {
		return err
	}
	if err := build(ctx, o.cache, o.bin); err != nil {
		return err
	}
	if err := buildVolumes(ctx, o.cache, o.bin, steps); err != nil || o.build {
		return err
	}
	tunables, err := saveTunables()
	if err != nil {
		return err
	}
	defer tunables.restore()
	r := newRecorder()
	results := filepath.Join(o.cache, "results.json")
	if err := r.load(results); err != nil {
		return err
	}
	var failed []error
	for round := range o.rounds {
		for _, name := range []string{shoalName, peerName} {
			if o.on != "" && o.on != name {
				continue
			}
			r.begin(name, round)
			b := &bench{options: o, system: name, record: r}
			if err := b.all(ctx, steps); err != nil {
				failed = append(failed, fmt.Errorf("%s, round %d: %w", name, round+1, err))
			}
			if ctx.Err() != nil {
				return errors.Join(append(failed, ctx.Err())...)
			}
		}
	}
	failed = append(failed, r.save(results))
	text := r.table()
	fmt.Print("\n" + text)
	if o.write {
		failed = append(failed, page.Replace(docsPage, beginMark, endMark, text))
	}
	return errors.Join(failed...)
}

// bench measures one of the two systems in one round.
type bench struct {
	options options
	system  string
	record  *recorder
}

// step is one group of measurements. Steps of the same stage share a cluster.
type step struct {
	name  string
	stage stage
	run   func(*bench, context.Context, *cluster) error
}

// stage is what a cluster consists of.
type stage int

const (
	oneNode  stage = iota // control plane and a real node
	twoNodes              // and another, on a host of its own
	plane                 // control plane alone
	unshared              // the step starts what it needs
)

// steps in the order of their run.
func steps() []step {
	return []step{
		{"cold", unshared, (*bench).cold},
		{"idle", oneNode, (*bench).idle},
		{"pods", oneNode, (*bench).pods},
		{"pull", oneNode, (*bench).pull},
		{"services", unshared, (*bench).services},
		{"dns", oneNode, (*bench).names},
		{"fail", twoNodes, (*bench).fail},
		{"api", plane, (*bench).api},
		{"schedule", unshared, (*bench).schedule},
		{"hollow", unshared, (*bench).hollow},
		{"volumes", unshared, (*bench).volumes},
	}
}

func stepNames() []string {
	var names []string
	for _, s := range steps() {
		names = append(names, s.name)
	}
	return names
}

func chosen(only string) ([]step, error) {
	if only == "" {
		return steps(), nil
	}
	var out []step
	for name := range strings.SplitSeq(only, ",") {
		i := slices.Index(stepNames(), name)
		if i < 0 {
			return nil, fmt.Errorf("-only: there is no %q; there are %s", name, strings.Join(stepNames(), ", "))
		}
		out = append(out, steps()[i])
	}
	return out, nil
}

// all runs the steps; one that fails does not keep the others from running.
func (b *bench) all(ctx context.Context, steps []step) error {
	var errs []error
	for len(steps) > 0 && ctx.Err() == nil {
		n := 1
		for n < len(steps) && steps[0].stage != unshared && steps[n].stage == steps[0].stage {
			n++
		}
		errs = append(errs, b.together(ctx, steps[:n]))
		steps = steps[n:]
	}
	return errors.Join(errs...)
}

// together runs steps on one cluster.
func (b *bench) together(ctx context.Context, steps []step) error {
	var names []string
	for _, s := range steps {
		names = append(names, s.name)
	}
	body := func(ctx context.Context, c *cluster) error {
		for _, s := range steps {
			b.record.step = slices.Index(stepNames(), s.name)
			if err := s.run(b, ctx, c); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
		return nil
	}
	var err error
	if steps[0].stage == unshared {
		err = body(ctx, nil)
	} else {
		err = b.with(ctx, steps[0].stage, body)
	}
	if err != nil {
		err = fmt.Errorf("measure %s: %w", strings.Join(names, ", "), err)
		fmt.Fprintln(os.Stderr, "peerbench:", b.system+":", err)
	}
	return err
}

// with starts a cluster, calls f and stops the cluster. f's context ends when
// one of the system's processes does.
func (b *bench) with(ctx context.Context, s stage, f func(context.Context, *cluster) error) error {
	c, err := b.start(ctx, s)
	if err == nil {
		running, cancel := context.WithCancelCause(ctx)
		go b.guard(running, c, cancel)
		if err = f(running, c); err != nil && running.Err() != nil {
			err = errors.Join(context.Cause(running), err)
		}
		cancel(nil)
	}
	if c == nil {
		return err
	}
	if err != nil && b.options.verbose {
		fmt.Fprintln(os.Stderr, c.logs())
	}
	return errors.Join(err, c.stop())
}

// guard looks at the processes until ctx ends: a look costs nothing that a
// measurement would show, and none of them tells of its end otherwise.
func (b *bench) guard(ctx context.Context, c *cluster, failed context.CancelCauseFunc) {
	for sleep(ctx, time.Second) == nil {
		if err := c.ended(); err != nil {
			failed(err)
			return
		}
	}
}
