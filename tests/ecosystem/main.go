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

	"github.com/shoal-project/shoal/tests/upstream"
)

type options struct {
	cache, only, archives string
	keep, build           bool
	timeout               time.Duration
}

// A subject is software, or something that is done with all that is installed.
type subject struct {
	name     string
	software []software
	archived []software // in place of software, where -archives has their sources
	needs    []string   // names of subjects that are run before
	run      func(*rig)
}

// In the order in which they are run.
var subjects = []subject{
	metricsServer,
	joined,
	kubeStateMetrics,
	nodeExporter,
	prometheus,
	localPath,
	redis,
	postgres,
	database,
	snapshots,
	certManager,
	argoRollouts,
	traefik,
	k9s,
	pythonClient,
	javaScriptClient,
	downUp,
	cniPlugins,
	flannel,
}

func main() {
	var o options
	flag.StringVar(&o.cache, "cache", "bin/ecosystem", "directory that keeps sources, programs and images")
	flag.StringVar(&o.only, "only", "", "run only these subjects and what they need, separated by commas: "+names())
	flag.StringVar(&o.archives, "archives", os.Getenv("ARCHIVES"), "directory of archives of sources that the module "+
		"proxy lacks; default ARCHIVES")
	flag.BoolVar(&o.build, "build", false, "only build what is needed")
	flag.BoolVar(&o.keep, "keep", false, "leave the cluster running")
	flag.DurationVar(&o.timeout, "timeout", 20*time.Minute, "of the run, without the builds")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "ecosystem:", err)
		os.Exit(1)
	}
}

func names() string {
	var all []string
	for _, s := range subjects {
		all = append(all, s.name)
	}
	return strings.Join(all, ", ")
}

// selectSubjects returns the named subjects with what they need, or all.
func selectSubjects(only string) ([]subject, error) {
	wanted := map[string]bool{}
	for _, name := range strings.Split(only, ",") {
		if err := want(name, wanted); err != nil {
			return nil, err
		}
	}
	var selected []subject
	for _, s := range subjects {
		if only == "" || wanted[s.name] {
			selected = append(selected, s)
		}
	}
	return selected, nil
}

// parts are what the subject is built of: its archived software, where archives has
// the sources of all of it.
func (s subject) parts(archives string) []software {
	for _, w := range s.archived {
		for _, name := range w.archives() {
			if archives == "" || !upstream.Have(filepath.Join(archives, name+".tar.xz")) {
				return s.software
			}
		}
	}
	if s.archived != nil {
		return s.archived
	}
	return s.software
}

func want(name string, wanted map[string]bool) error {
	if name == "" || wanted[name] {
		return nil
	}
	i := slices.IndexFunc(subjects, func(s subject) bool { return s.name == name })
	if i < 0 {
		return fmt.Errorf("-only %q: no such subject; there are %s", name, names())
	}
	wanted[name] = true
	for _, n := range subjects[i].needs {
		if err := want(n, wanted); err != nil {
			return err
		}
	}
	return nil
}

func run(ctx context.Context, o options) error {
	selected, err := selectSubjects(o.only)
	if err != nil {
		return err
	}
	cache, err := filepath.Abs(o.cache)
	if err != nil {
		return err
	}
	var archives []string
	for _, s := range selected {
		for _, w := range s.parts(o.archives) {
			made, err := w.make(ctx, cache, o.archives)
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			archives = append(archives, made...)
		}
	}
	if o.build {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	r := &rig{ctx: ctx, cache: cache}
	if r.work, err = os.MkdirTemp("", "shoal-ecosystem-"); err != nil {
		return err
	}
	err = r.start(archives)
	if err == nil {
		for _, s := range selected {
			r.subject, r.software = s.name, s.parts(o.archives)
			s.run(r)
		}
	}
	if o.keep {
		fmt.Println("KUBECONFIG="+r.Kubeconfig(), "network namespace:", r.NetNS)
	} else {
		r.subject, r.ctx = "rig", context.Background()
		r.check("nothing is left behind", func() (string, error) { return "", r.stop() })
	}
	fmt.Printf("%d checks passed, %d failed\n", r.passed, r.failed)
	if r.failed > 0 {
		err = errors.Join(err, fmt.Errorf("%d checks failed", r.failed))
	}
	return err
}
