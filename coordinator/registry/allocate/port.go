package allocate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

var (
	errPortTaken = errors.New("provided port is already allocated")
	errPortsFull = errors.New("range is full")
)

// portBook is the truth about node ports, shared by all coordinators: one
// bitmap of the range, as upstream keeps it.
type portBook interface {
	// change has f work on the bitmap and stores what it leaves. f may run again,
	// on what another coordinator has stored meanwhile. dryRun: nothing is stored.
	change(ctx context.Context, dryRun bool, f func(*corev1.RangeAllocation) error) error
	// held lists the node ports of the stored services.
	held(ctx context.Context) ([]int32, error)
}

// orphaned is how long a port without a service must have been seen so before
// it is free again: its service was never written, or its release failed. A
// service is written within a request's time.
const orphaned = 2 * time.Minute

// nodePorts gives out node ports.
type nodePorts struct {
	book     portBook
	min, max int

	mu     sync.Mutex
	seeded bool
	// orphans are the ports without a service, by when they were first seen so.
	orphans map[int32]time.Time
}

func openNodePorts(book portBook, least, most int) *nodePorts {
	register()
	if least == 0 {
		least, most = 30000, 32767
	}
	return &nodePorts{book: book, min: least, max: most, orphans: map[int32]time.Time{}}
}

func (p *nodePorts) size() uint64  { return uint64(p.max - p.min + 1) }
func (p *nodePorts) spans() string { return fmt.Sprintf("%d-%d", p.min, p.max) }

func (p *nodePorts) index(port int32) (uint64, bool) {
	return uint64(int(port) - p.min), int(port) >= p.min && int(port) <= p.max
}

// with has f take and free ports of the pool; when a port is taken or none is
// left, orphans are looked for and f runs once more.
func (p *nodePorts) with(ctx context.Context, dryRun bool, f func(*pool) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.seed(ctx); err != nil {
		return apierrors.NewInternalError(fmt.Errorf("list services to learn their node ports: %w", err))
	}
	err := p.change(ctx, dryRun, f)
	if !errors.Is(err, errPortTaken) && !errors.Is(err, errPortsFull) {
		return err
	}
	freed, lookErr := p.reclaim(ctx, time.Now())
	if lookErr != nil || !freed {
		return errors.Join(err, lookErr)
	}
	return p.change(ctx, dryRun, f)
}

func (p *nodePorts) change(ctx context.Context, dryRun bool, f func(*pool) error) error {
	var all *pool
	err := p.book.change(ctx, dryRun, func(r *corev1.RangeAllocation) error {
		all = p.restore(r)
		if err := f(all); err != nil {
			return err
		}
		r.Range, r.Data = p.spans(), all.used.Bytes()
		return nil
	})
	if err == nil && !dryRun {
		allocatedPorts.Set(float64(all.taken))
		availablePorts.Set(float64(all.size - all.taken))
	}
	return err
}

// restore reads the bitmap. One of another range than ours keeps its ports as
// far as they are in ours.
func (p *nodePorts) restore(r *corev1.RangeAllocation) *pool {
	all := newPool(p.size(), min(max(16, p.size()/32), 128))
	if r.Range == p.spans() || len(r.Data) == 0 {
		all.restore(r.Data)
		return all
	}
	var least, most int
	if _, err := fmt.Sscanf(r.Range, "%d-%d", &least, &most); err != nil {
		return all // the services' own ports are taken by seed
	}
	was := newPool(uint64(max(most-least+1, 0)), 0)
	was.restore(r.Data)
	for i := range was.size {
		if n, ok := p.index(int32(least) + int32(i)); ok && was.holds(i) {
			all.take(n)
		}
	}
	return all
}

// seed enters the ports of services that were there before the bitmap, and
// notes the orphans, once in a process's life.
func (p *nodePorts) seed(ctx context.Context) error {
	if p.seeded {
		return nil
	}
	held, err := p.book.held(ctx)
	if err != nil {
		return err
	}
	err = p.change(ctx, false, func(all *pool) error {
		for _, port := range held {
			if n, ok := p.index(port); ok {
				all.take(n)
			}
		}
		p.note(all, held, time.Now())
		return nil
	})
	p.seeded = err == nil
	return err
}

// note remembers since when ports have no service.
func (p *nodePorts) note(all *pool, list []int32, now time.Time) {
	held := sets.New(list...)
	for n := range all.size {
		port := int32(p.min) + int32(n)
		switch _, known := p.orphans[port]; {
		case !all.holds(n) || held.Has(port):
			delete(p.orphans, port)
		case !known:
			p.orphans[port] = now
		}
	}
}

// reclaim frees the ports that have had no service for long.
func (p *nodePorts) reclaim(ctx context.Context, now time.Time) (freed bool, err error) {
	held, err := p.book.held(ctx)
	if err != nil {
		return false, err
	}
	err = p.change(ctx, false, func(all *pool) error {
		freed = false
		p.note(all, held, now)
		for port, since := range p.orphans {
			if n, ok := p.index(port); ok && now.Sub(since) > orphaned {
				all.free(n)
				freed = true
			}
		}
		return nil
	})
	return freed, err
}

// release gives ports back.
func (p *nodePorts) release(ctx context.Context, ports []int32) error {
	if len(ports) == 0 {
		return nil
	}
	return p.with(ctx, false, func(all *pool) error {
		for _, port := range ports {
			if n, ok := p.index(port); ok {
				all.free(n)
			}
		}
		return nil
	})
}

// fill reserves the ports that a service lacks or asks for. taken are those that
// it did not have before.
func (p *nodePorts) fill(ctx context.Context, s, old *corev1.Service, dryRun bool) (taken []int32, err error) {
	had, hadHealth := portsOf(old), healthPortOf(old)
	if !lacksPorts(s) && healthPortOf(s) == hadHealth && slices.Equal(portsOf(s), had) || !HasNodePorts(s) {
		return nil, nil
	}
	asked, health := slices.Clone(s.Spec.Ports), s.Spec.HealthCheckNodePort
	var w *portWork // of the last attempt
	err = p.with(ctx, dryRun, func(all *pool) error {
		s.Spec.Ports, s.Spec.HealthCheckNodePort, taken = slices.Clone(asked), health, nil
		w = &portWork{nodePorts: p, pool: all, s: s, had: had, hadHealth: hadHealth, taken: &taken, dryRun: dryRun}
		return w.fill(old == nil)
	})
	if w != nil && !dryRun {
		w.count()
	}
	if err != nil {
		return nil, err // nothing was stored
	}
	return taken, nil
}

// lacksPorts: a port is to be given by us.
func lacksPorts(s *corev1.Service) bool {
	if NeedsHealthPort(s) && s.Spec.HealthCheckNodePort == 0 {
		return true
	}
	return automaticPorts(s) &&
		slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.NodePort == 0 })
}

func automaticPorts(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeNodePort ||
		s.Spec.Type == corev1.ServiceTypeLoadBalancer && ptr.Deref(s.Spec.AllocateLoadBalancerNodePorts, false)
}

// portWork is one service's reservation in one state of the pool.
type portWork struct {
	*nodePorts
	pool *pool
	s    *corev1.Service
	had  []int32
	// hadHealth is the one of had that load balancers ask for a node's health.
	hadHealth int32
	taken     *[]int32
	// dryRun: nothing will be stored.
	dryRun bool
	// anyhow and asked are the ports taken as they came and as the Service names them;
	// refused is how one was sought that could not be had.
	anyhow, asked int
	refused       string
}

func (w *portWork) count() {
	for scope, n := range map[string]int{dynamic: w.anyhow, static: w.asked} {
		if n > 0 {
			portsGiven.WithLabelValues(scope).Add(float64(n))
		}
	}
	if w.refused != "" {
		portsRefused.WithLabelValues(w.refused).Inc()
	}
}

// fill gives ports that differ only in protocol one number. Its errors are the
// API's, joined with their cause.
func (w *portWork) fill(fresh bool) error {
	byPort := map[int32]int32{}
	if fresh {
		for _, p := range w.s.Spec.Ports {
			if p.NodePort != 0 && byPort[p.Port] == 0 {
				byPort[p.Port] = p.NodePort
			}
		}
	}
	given := map[int32]int32{}
	for i := range w.s.Spec.Ports {
		p := &w.s.Spec.Ports[i]
		if p.NodePort == 0 && !automaticPorts(w.s) {
			continue
		}
		if p.NodePort == 0 {
			p.NodePort = byPort[p.Port]
		}
		if p.NodePort != 0 {
			// In an update it is validation that refuses a number twice.
			if err := w.take(p.NodePort, !fresh || given[p.Port] == p.NodePort); err != nil {
				return errors.Join(invalidService(w.s, field.ErrorList{
					field.Invalid(field.NewPath("spec", "ports").Index(i).Child("nodePort"), p.NodePort, err.Error()),
				}), err)
			}
			given[p.Port] = p.NodePort
			continue
		}
		port, err := w.next()
		if err != nil {
			return errors.Join(apierrors.NewInternalError(fmt.Errorf("failed to allocate a nodePort: %w", err)), err)
		}
		p.NodePort = port
		if given[p.Port] = port; fresh {
			byPort[p.Port] = port
		}
	}
	return w.fillHealth()
}

func (w *portWork) fillHealth() error {
	spec := &w.s.Spec
	if !NeedsHealthPort(w.s) {
		return nil
	}
	if spec.HealthCheckNodePort != 0 {
		if spec.HealthCheckNodePort == w.hadHealth {
			return nil
		}
		if err := w.take(spec.HealthCheckNodePort, false); err != nil {
			return errors.Join(apierrors.NewInternalError(
				fmt.Errorf("failed to allocate requested HealthCheck NodePort %v: %w", spec.HealthCheckNodePort, err)),
				err)
		}
		return nil
	}
	port, err := w.next()
	if err != nil {
		return errors.Join(apierrors.NewInternalError(fmt.Errorf("failed to allocate a HealthCheck NodePort: %w", err)),
			err)
	}
	spec.HealthCheckNodePort = port
	return nil
}

// take reserves a port. A shared one may be the Service's own already.
func (w *portWork) take(port int32, shared bool) error {
	if slices.Contains(w.had, port) || slices.Contains(*w.taken, port) {
		if !shared {
			w.refused = static
			return errPortTaken
		}
		return nil
	}
	n, ok := w.index(port)
	if !ok && w.dryRun {
		*w.taken = append(*w.taken, port) // upstream asks a dry run's port of no range
		return nil
	}
	if !ok {
		w.refused = static
		return fmt.Errorf("provided port is not in the valid range. The range of valid ports is %s", w.spans())
	}
	if !w.pool.take(n) {
		w.refused = static
		return errPortTaken
	}
	w.asked++
	*w.taken = append(*w.taken, port)
	return nil
}

func (w *portWork) next() (int32, error) {
	n, ok := w.pool.next()
	if !ok {
		w.refused = dynamic
		return 0, errPortsFull
	}
	w.anyhow++
	port := int32(w.min) + int32(n)
	*w.taken = append(*w.taken, port)
	return port, nil
}
