package cpu

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Container is one that the runtime has and that has not ended.
type Container struct {
	ID, Name string
	Pod      types.UID
}

// Pool keeps containers on the CPUs that they are to run on while these change.
type Pool struct {
	// Of are the CPUs that a container is to run on, as the kernel writes lists.
	Of func(pod types.UID, container string) string
	// List gives all containers that have not ended, Set has one run on these CPUs alone.
	List func(context.Context) ([]Container, error)
	Set  func(ctx context.Context, id, cpus string) error
	Log  *slog.Logger

	// applying serializes Apply.
	applying sync.Mutex

	mu sync.Mutex
	// on is what the containers were set to, by ID; one that is not there may run on any.
	on map[string]string
	// retry holds a token when something failed.
	retry chan struct{}
}

// Created takes that a container was created on CPUs, and sees to it before it starts that
// these are still its own.
func (p *Pool) Created(ctx context.Context, c Container, cpus string) {
	p.mu.Lock()
	if p.on == nil {
		p.on = map[string]string{}
	}
	p.on[c.ID] = cpus
	p.mu.Unlock()
	if p.Of(c.Pod, c.Name) != cpus {
		p.Apply(ctx)
	}
}

// Apply has all containers run where they are to. What fails is tried again by Run.
func (p *Pool) Apply(ctx context.Context) {
	p.applying.Lock()
	defer p.applying.Unlock()
	if p.apply(ctx) {
		return
	}
	select {
	case p.failed() <- struct{}{}:
	default:
	}
}

func (p *Pool) failed() chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.retry == nil {
		p.retry = make(chan struct{}, 1)
	}
	return p.retry
}

// apply tells whether all containers run where they are to.
func (p *Pool) apply(ctx context.Context) bool {
	list, err := p.List(ctx)
	if err != nil {
		p.Log.Debug("containers are not known: they may run on CPUs of others", "err", err)
		return false
	}
	p.mu.Lock()
	before := maps.Clone(p.on)
	p.mu.Unlock()
	all := true
	now := make(map[string]string, len(list))
	for _, c := range list {
		want := p.Of(c.Pod, c.Name)
		if was, known := before[c.ID]; known && was == want {
			now[c.ID] = want
			continue
		}
		if err := p.Set(ctx, c.ID, want); err != nil {
			// It may have ended meanwhile: the next list tells.
			p.Log.Debug("a container's CPUs are not set", "container", c.ID, "cpus", want, "err", err)
			all = false
			continue
		}
		now[c.ID] = want
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.on = now
	return all
}

// Pauses between tries.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// Run applies at once, for what runs since before, and tries again what failed, until ctx ends.
func (p *Pool) Run(ctx context.Context) error {
	for p.Settle(ctx) {
		select {
		case <-ctx.Done():
			return nil
		case <-p.failed():
		}
		wait(ctx, firstRetry)
	}
	return nil
}

// Settle tries until all containers run where they are to, and tells whether they do: false
// when ctx has ended before.
func (p *Pool) Settle(ctx context.Context) bool {
	for delay := firstRetry; ; delay = min(2*delay, lastRetry) {
		p.applying.Lock()
		done := p.apply(ctx)
		p.applying.Unlock()
		if done || ctx.Err() != nil {
			return done
		}
		if delay >= lastRetry/2 && delay < lastRetry {
			p.Log.Warn("containers run on CPUs that are not theirs: the runtime does not set them")
		}
		wait(ctx, delay)
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
