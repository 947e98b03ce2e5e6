package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	resultsFile  = "tests/apidiff/results.txt"
	acceptedFile = "tests/apidiff/accepted.txt"
	openFile     = "tests/apidiff/open.txt"
)

type options struct {
	bin, cache, out string
	only            string
	seed            uint64
	n, jobs         int
	build, write    bool
	record, replay  bool
}

func main() {
	o := options{seed: 1, n: 20000}
	if s, err := strconv.ParseUint(os.Getenv("SEED"), 10, 64); err == nil {
		o.seed = s
	}
	if n, err := strconv.Atoi(os.Getenv("N")); err == nil {
		o.n = n
	}
	flag.StringVar(&o.bin, "bin", "bin", "directory of the product's programs")
	flag.StringVar(&o.cache, "cache", "bin/peer", "directory that upstream's programs are built into and kept in")
	flag.StringVar(&o.out, "out", "bin/apidiff.txt", "file that the causes are written to, with their requests")
	flag.StringVar(&o.only, "only", "", "resources to send requests for, comma-separated; default all")
	flag.Uint64Var(&o.seed, "seed", o.seed, "seed of the requests; default SEED")
	flag.IntVar(&o.n, "n", o.n, "number of requests made from mutated objects; default N")
	flag.IntVar(&o.jobs, "jobs", 4, "requests at the same time")
	flag.BoolVar(&o.build, "build", false, "only build upstream")
	flag.BoolVar(&o.write, "write", false, "write the causes without their requests into "+resultsFile)
	flag.BoolVar(&o.record, "record", false, "write upstream's answers into "+tapeFile+", and the open causes into "+
		openFile)
	flag.BoolVar(&o.replay, "replay", false, "take upstream's answers from "+tapeFile+
		"; causes in "+openFile+" are no failure")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "apidiff:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	var err error
	if o.bin, err = filepath.Abs(o.bin); err != nil {
		return err
	}
	if o.cache, err = filepath.Abs(o.cache); err != nil {
		return err
	}
	accepted, err := readAccepted(acceptedFile)
	if err != nil {
		return err
	}
	var t *tape
	switch {
	case o.replay:
		if t, err = readTape(tapeFile); err != nil {
			return err
		}
		o.seed, o.n, o.only = t.Seed, t.N, ""
	case o.record:
		t = &tape{Seed: o.seed, N: o.n, answers: map[string]recorded{}}
	}
	if !o.replay {
		if err := build(ctx, o.cache); err != nil || o.build {
			return err
		}
	}
	p, err := start(ctx, o, t)
	defer p.stop()
	if err != nil {
		return err
	}
	r := newReport(accepted)
	if err := compareAll(ctx, o, p, r); err != nil {
		return fmt.Errorf("%s\n%w", p.logs(), err)
	}
	if err := r.write(o); err != nil {
		return err
	}
	fmt.Print(r.summary())
	switch {
	case o.record:
		return errors.Join(t.write(tapeFile), r.writeOpen(openFile))
	case o.replay:
		return r.judgeOpen(openFile, o.out)
	}
	if n := r.open(); n > 0 {
		return fmt.Errorf("%d causes are not in %s: see %s", n, acceptedFile, o.out)
	}
	return nil
}

// compareAll sends everything that there is to send.
func compareAll(ctx context.Context, o options, p *pair, r *report) error {
	ks, err := discover(ctx, p, o.only)
	if err != nil {
		return err
	}
	if err := prepare(ctx, p, ks, r); err != nil {
		return err
	}
	if o.only == "" {
		if err := surface(ctx, p, ks, r); err != nil {
			return err
		}
	}
	if err := mutated(ctx, o, p, ks, r); err != nil || o.only != "" {
		return err
	}
	for _, sc := range []scenario{watches(), pages()} {
		if err := r.play(ctx, p, sc); err != nil {
			return err
		}
	}
	return compareReviews(ctx, p, r)
}

// mutated sends N requests, from some workers.
func mutated(ctx context.Context, o options, p *pair, ks []*kind, r *report) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	numbers := make(chan int)
	var wg sync.WaitGroup
	for range o.jobs {
		wg.Go(func() {
			for i := range numbers {
				req, ok := makeRequest(o.seed, i, ks)
				if !ok {
					continue
				}
				if err := r.ask(ctx, p, req); err != nil {
					cancel(err)
				}
			}
		})
	}
	last := time.Now()
	for i := range o.n {
		select {
		case numbers <- i:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		if time.Since(last) > 20*time.Second {
			last = time.Now()
			fmt.Println(i+1, "of", o.n, "requests,", r.causes(), "causes")
			if err := r.write(o); err != nil {
				cancel(err)
			}
		}
	}
	close(numbers)
	wg.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
