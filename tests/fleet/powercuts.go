package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// powerCuts has machines lose power, again and again, each while its database writes.
type powerCuts struct {
	*rig
	cluster

	mu   sync.Mutex
	cuts int
	took []time.Duration // until another machine wrote
	back int             // the machine was back sooner, and wrote on
}

// databases run on machines of their own, of six: while all of theirs are off, more than
// half of the fleet is there.
var databases = []string{"a", "b", "c"}

// runPowerCuts has the machines of three databases lose power, each by itself: as often as
// -cuts says in all. Some stay off until another writes, some are back before anybody may.
func runPowerCuts(ctx context.Context, r *rig) (err error) {
	defer func() { r.shared = "" }()
	if err := r.share(databases...); err != nil {
		return err
	}
	c, remove, ok, err := r.newCluster(ctx, "second", "third", "fourth", "fifth", "sixth", "seventh")
	defer func() { err = errors.Join(err, remove()) }()
	if err != nil || !ok {
		return err
	}
	defer r.showNodes(c)
	begin := "kubectl label nodes second third fourth fifth sixth seventh db=yes >/dev/null\n"
	for _, name := range databases {
		begin += apply(database(name)) + "until_ 60 kubectl rollout status statefulset/" + name + " --timeout=5s >&2\n"
	}
	if !r.script(ctx, c.first, "databases write", begin) {
		return nil
	}
	p := &powerCuts{rig: r, cluster: c}
	fmt.Printf("power cuts, seed %d\n", r.seed)
	errs := make([]error, len(databases))
	stop, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	for i, name := range databases {
		random := rand.New(rand.NewPCG(r.seed, uint64(i)))
		wg.Go(func() {
			for p.next() && stop.Err() == nil {
				if err := p.cut(stop, name, random); err != nil {
					errs[i] = fmt.Errorf("%s: %w", name, err)
					cancel()
				}
			}
		})
	}
	wg.Wait()
	what := "%d power cuts: somebody writes within half a minute of each, or of the machine's start"
	r.step(ctx, fmt.Sprintf(what, r.cuts),
		func(context.Context) (string, error) {
			slices.Sort(p.took)
			said := fmt.Sprintf("%d cuts, back and writing before another might %d times", p.cuts, p.back)
			if n := len(p.took); n > 0 {
				said += fmt.Sprintf("; another wrote after %.1f s (median), %.1f s (longest of %d)",
					p.took[n/2].Seconds(), p.took[n-1].Seconds(), n)
			}
			return said, errors.Join(errs...)
		})
	for _, name := range databases {
		r.step(ctx, "never have two written: "+name, func(context.Context) (string, error) {
			runs, lines, err := writers(r.logOf(name))
			return fmt.Sprintf("%d lines of %d runs", lines, runs), err
		})
	}
	return nil
}

// next counts a cut, unless all were made.
func (p *powerCuts) next() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cuts >= p.rig.cuts {
		return false
	}
	p.cuts++
	return true
}

// cut has the machine of a database lose power, gives it back after a time, and waits
// until the database writes, wherever.
func (p *powerCuts) cut(ctx context.Context, name string, random *rand.Rand) error {
	log := p.logOf(name)
	id, machine, err := lastWriter(log)
	if err != nil {
		return err
	}
	m, err := p.named(machine)
	if err != nil {
		return err
	}
	sleep(ctx, time.Duration(random.Int64N(int64(2*time.Second)))) // anywhere in its writing
	off := time.Duration(-1)                                       // until another writes
	if random.IntN(2) == 0 {
		off = time.Duration(random.Int64N(int64(25 * time.Second)))
	}
	began := time.Now()
	m.cut()
	on, where := false, machine
	for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		if !on && off >= 0 && time.Since(began) > off {
			on = true
			if err := m.boot(ctx); err != nil {
				return err
			}
		}
		now := ""
		if now, where, err = lastWriter(log); err != nil {
			return err
		}
		if now != id {
			break
		}
		// A machine that is back in the middle has the others wait for it once more.
		if limit := 30*time.Second + max(off, 0); time.Since(began) > limit {
			seen, _ := p.first.sh(ctx, evidence)
			return fmt.Errorf("nobody writes %s after %s lost power (on again: %v)\n%s", limit, machine, on, seen)
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	took := time.Since(began)
	if !on {
		if err := m.boot(ctx); err != nil {
			return err
		}
	}
	p.wrote(name, machine, where, took)
	if _, err := p.first.sh(ctx, "until_ 60 kubectl wait --for=condition=Ready node/"+machine+" --timeout=5s >&2\n"+
		"free() { l=$(kubectl -n kube-node-lease get lease "+machine+" -o yaml) && ! echo \"$l\" | grep -q fence.shoal.io/raised; }\n"+
		"until_ 60 free; until_ 60 kubectl rollout status statefulset/"+name+" --timeout=5s >&2"); err != nil {
		return err
	}
	_, _, err = writers(log)
	return err
}

func (p *powerCuts) wrote(name, machine, where string, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if where == machine {
		p.back++
	} else {
		p.took = append(p.took, took)
	}
	fmt.Printf("%3d %s: %s lost power, %s writes after %.1f s\n",
		p.back+len(p.took), name, machine, where, took.Seconds())
}
