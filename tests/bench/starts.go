package main

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/shoal-project/shoal/tests/bench/measure"
)

// together is how many pods are started at once, and starts how many one by one, where
// the starts alone are measured.
const (
	together = 100
	starts   = 30
)

// startsAlone measures the starts of pods, with the processor time that they take: of
// the daemons, and of all the programs and the containers.
func startsAlone(ctx context.Context, runs int) (rows []row, parts phases, err error) {
	c, err := prepare("starts")
	if err != nil {
		return nil, nil, err
	}
	daemons, err := measure.NewGroup(c.Name + "-daemons")
	if err != nil {
		return nil, nil, errors.Join(err, c.Stop())
	}
	defer func() { err = errors.Join(err, c.Stop(), measure.RemoveGroups(c.Name+"-daemons")) }()
	c.Prefix = daemons.Prefix()
	if err := c.Up(); err != nil {
		return nil, nil, err
	}
	b := &bench{cluster: c}
	if err := b.connect(); err != nil {
		return nil, nil, err
	}
	if _, _, err := b.pods.Together(ctx, 1); err != nil { // caches: the image's layers, the kernel's
		return nil, nil, err
	}
	if _, err := b.pods.DeleteAll(ctx); err != nil {
		return nil, nil, err
	}
	time.Sleep(afterEffects)
	groups := []measure.Group{daemons, measure.Group(filepath.Join(measure.Accountant(), c.Name))}
	var single, many measure.Sample
	alone, crowd := &spent{pods: starts}, &spent{pods: together}
	parts = phases{}
	for range runs {
		err := alone.count(b, groups, func() error {
			took, p, err := b.startEach(ctx, starts)
			single = append(single, took...)
			for what, values := range p {
				parts[what] = append(parts[what], values...)
			}
			return err
		})
		if err != nil {
			return nil, nil, err
		}
		if _, err := b.pods.DeleteAll(ctx); err != nil {
			return nil, nil, err
		}
		time.Sleep(time.Second)
		err = crowd.count(b, groups, func() error {
			_, took, err := b.pods.Together(ctx, together)
			many = append(many, took.Seconds())
			return err
		})
		if err != nil {
			return nil, nil, err
		}
		if _, err := b.pods.DeleteAll(ctx); err != nil {
			return nil, nil, err
		}
		time.Sleep(time.Second)
	}
	rows = append(rows, row{"pod start, one by one", "20", "", single, "ms"})
	rows = append(rows, alone.rows("one by one")...)
	rows = append(rows, row{"100 pods at once", "2", "", many, "s"})
	return append(rows, crowd.rows("100 at once")...), parts, nil
}

// spent is the processor time of starts, in ms a pod.
type spent struct {
	pods                    int
	coordinator, agent, all measure.Sample
}

// count takes the time that is spent while fn runs.
func (s *spent) count(b *bench, groups []measure.Group, fn func() error) error {
	before, err := b.used(groups)
	if err != nil {
		return err
	}
	if err := fn(); err != nil {
		return err
	}
	after, err := b.used(groups)
	if err != nil {
		return err
	}
	for i, to := range []*measure.Sample{&s.coordinator, &s.agent, &s.all} {
		*to = append(*to, measure.Ms(after[i]-before[i])/float64(s.pods))
	}
	return nil
}

func (s *spent) rows(how string) (rows []row) {
	var rest measure.Sample
	for i := range s.all {
		rest = append(rest, s.all[i]-s.agent[i]-s.coordinator[i])
	}
	for _, r := range []struct {
		of     string
		values measure.Sample
	}{{"all", s.all}, {"coordinator", s.coordinator}, {"agent", s.agent}, {"programs and containers", rest}} {
		rows = append(rows, row{how + ": CPU, " + r.of, "", "", r.values, "ms a pod"})
	}
	return rows
}

// used is the processor time of coordinator, agent and all groups so far.
func (b *bench) used(groups []measure.Group) (out [3]time.Duration, err error) {
	for i, d := range []string{"coordinator", "agent"} {
		pid, err := b.cluster.Pid(d)
		if err != nil {
			return out, err
		}
		s, err := measure.CPUSeconds(pid)
		if err != nil {
			return out, err
		}
		out[i] = time.Duration(s * float64(time.Second))
	}
	for _, g := range groups {
		d, err := g.Used()
		if err != nil {
			return out, err
		}
		out[2] += d
	}
	return out, nil
}
