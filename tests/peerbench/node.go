package main

import (
	"context"
	"fmt"
	"time"

	"github.com/shoal-project/shoal/tests/bench/measure"
)

// Pods and repetitions of the steps on a node.
const (
	coldStarts = 3
	oneByOne   = 10
	atOnce     = 30
	bursts     = 2
	crowd      = 100
	// afterEffects is how long a start or a burst may have after-effects: caches fill,
	// garbage is collected.
	afterEffects = 15 * time.Second
	idleWatch    = 20 * time.Second
	// pauseBetween lets the last pod's late work (events, statuses) end.
	pauseBetween = 300 * time.Millisecond
)

// cold measures from the start of the first process to a Ready node.
func (b *bench) cold(ctx context.Context, _ *cluster) error {
	var s measure.Sample
	for range coldStarts {
		took, err := b.coldStart(ctx)
		if err != nil {
			return err
		}
		s = append(s, took.Seconds())
	}
	b.record.cost("cold start to a Ready node", "s", s.Median())
	return nil
}

func (b *bench) coldStart(ctx context.Context) (time.Duration, error) {
	var took time.Duration
	err := b.with(ctx, oneNode, func(_ context.Context, c *cluster) error {
		took = c.took
		return nil
	})
	return took, err
}

// idle measures a cluster that nobody uses.
func (b *bench) idle(ctx context.Context, c *cluster) error {
	if err := sleep(ctx, afterEffects); err != nil {
		return err
	}
	if err := b.idleCPU(ctx, c, "idle"); err != nil {
		return err
	}
	return b.weigh(c, "idle", true)
}

// idleCPU measures the CPU use of the whole system while nothing is asked of it.
func (b *bench) idleCPU(ctx context.Context, c *cluster, when string) error {
	before, err := c.used()
	if err != nil {
		return err
	}
	start := time.Now()
	if err := sleep(ctx, idleWatch); err != nil {
		return err
	}
	after, err := c.used()
	if err != nil {
		return err
	}
	b.record.cost(when+": CPU of all processes", "% of a core", 100*(after-before).Seconds()/time.Since(start).Seconds())
	return nil
}

// weigh records the memory of all processes but the workload's, in sums and,
// with each, by program.
func (b *bench) weigh(c *cluster, when string, each bool) error {
	w, err := weigh(c.groups)
	if err != nil {
		return err
	}
	control, node := w.parts()
	b.record.cost(when+": PSS of the control plane", "MB", control)
	if node > 0 {
		b.record.cost(when+": PSS of the node", "MB", node)
		b.record.cost(when+": PSS in all", "MB", control+node)
	}
	if each {
		b.record.detail(when, w)
	}
	return nil
}

// pods measures starts and deletions on a real node.
func (b *bench) pods(ctx context.Context, c *cluster) error {
	pods := &measure.Pods{Client: c.client, CgroupRoot: c.podGroup}
	if _, _, err := pods.Together(ctx, 1); err != nil { // caches: the image's layers, the kernel's
		return err
	}
	if err := b.onePod(ctx, c, pods); err != nil {
		return err
	}
	for _, n := range []int{atOnce, crowd} {
		var took, gone, cpu measure.Sample
		for i := range bursts {
			if _, err := pods.DeleteAll(ctx); err != nil {
				return err
			}
			if err := sleep(ctx, time.Second); err != nil {
				return err
			}
			before, err := c.used()
			if err != nil {
				return err
			}
			_, d, err := pods.Together(ctx, n)
			if err != nil {
				return err
			}
			after, err := c.used()
			if err != nil {
				return err
			}
			took = append(took, d.Seconds())
			cpu = append(cpu, measure.Ms(after-before)/float64(n))
			if n < crowd {
				continue
			}
			if i == 0 {
				if err := b.crowded(ctx, c); err != nil {
					return err
				}
			}
			if d, err = pods.DeleteAll(ctx); err != nil {
				return err
			}
			gone = append(gone, d.Seconds())
		}
		b.record.cost(fmt.Sprintf("%d pods at once, until all run", n), "s", took.Median())
		b.record.cost(fmt.Sprintf("%d pods at once: CPU", n), "ms a pod", cpu.Median())
		if gone != nil {
			b.record.cost(fmt.Sprintf("%d pods deleted, until off the node", n), "s", gone.Median())
		}
	}
	return b.probed(ctx, c, pods)
}

// probed measures pods whose readiness is asked for over HTTP, each second.
func (b *bench) probed(ctx context.Context, c *cluster, pods *measure.Pods) error {
	pods.Probe = true
	defer func() { pods.Probe = false }()
	if _, _, err := pods.Together(ctx, crowd); err != nil {
		return err
	}
	if err := sleep(ctx, afterEffects); err != nil {
		return err
	}
	if err := b.idleCPU(ctx, c, fmt.Sprintf("%d pods with HTTP probes each second", crowd)); err != nil {
		return err
	}
	_, err := pods.DeleteAll(ctx)
	return err
}

// onePod starts pods one after the other.
func (b *bench) onePod(ctx context.Context, c *cluster, pods *measure.Pods) error {
	var took measure.Sample
	before, err := c.used()
	if err != nil {
		return err
	}
	for range oneByOne {
		s, err := pods.One(ctx)
		if err != nil {
			return err
		}
		took = append(took, measure.Ms(s.Running.Sub(s.Began)))
		if err := sleep(ctx, pauseBetween); err != nil {
			return err
		}
	}
	after, err := c.used()
	if err != nil {
		return err
	}
	b.record.cost("pod start, one by one", "ms", took.Median())
	b.record.cost("pod start, one by one, slowest", "ms", took.Max())
	b.record.cost("pod start, one by one: CPU", "ms a pod", measure.Ms(after-before)/oneByOne)
	return nil
}

// crowded measures a node full of pods that do nothing.
func (b *bench) crowded(ctx context.Context, c *cluster) error {
	if err := sleep(ctx, afterEffects); err != nil {
		return err
	}
	when := fmt.Sprintf("%d pods", crowd)
	if err := b.idleCPU(ctx, c, when); err != nil {
		return err
	}
	return b.weigh(c, when, true)
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
