package controller

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// Reconciler brings what one key names to what it should be. It is called with
// a key again after each event that Watch maps to it, after `after` when that
// is above zero, and with back-off after an error. One key is never reconciled
// twice at once.
type Reconciler interface {
	Reconcile(ctx context.Context, key string) (after time.Duration, err error)
}

// Func is a Reconciler that is a function.
type Func func(ctx context.Context, key string) (time.Duration, error)

// Reconcile calls f.
func (f Func) Reconcile(ctx context.Context, key string) (time.Duration, error) { return f(ctx, key) }

const (
	firstRetry = 5 * time.Millisecond
	lastRetry  = 60 * time.Second
	// An error that lasts is logged once, when it has outlived conflicts and
	// other short disturbances.
	loggedRetry = 10
)

// Loop runs one Reconciler. Build it with New, add sources with Watch, then
// Run it once.
type Loop struct {
	// Reconciler may be set after New, when it needs the loop itself.
	Reconciler Reconciler
	// Started, when set, runs after the caches are full and before the first
	// key.
	Started func(ctx context.Context)

	name    string
	workers int
	log     *slog.Logger
	queue   workqueue.TypedRateLimitingInterface[string]
	stats   *queueStats
	began   []atomic.Int64 // when each worker took its key, in ns since the epoch; 0: it has none
	watches []watch
}

type watch struct {
	informer cache.SharedIndexInformer
	handler  cache.ResourceEventHandler
}

// New returns a loop that reconciles up to workers keys at once.
func New(name string, workers int, log *slog.Logger) *Loop {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry)
	stats := queues.of(name)
	queue := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[string]{Queue: &keys{stats: stats}})
	return &Loop{
		name: name, workers: workers, log: log.With("controller", name),
		stats: stats, began: make([]atomic.Int64, workers),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[string]{
			DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(
				workqueue.TypedDelayingQueueConfig[string]{Queue: queue}),
		}),
	}
}

// Name tells whose loop it is.
func (l *Loop) Name() string { return l.name }

// Add has key reconciled soon.
func (l *Loop) Add(key string) { l.queue.Add(key) }

// AddAfter has key reconciled after d.
func (l *Loop) AddAfter(key string, d time.Duration) {
	l.stats.retries.Add(1)
	l.queue.AddAfter(key, d)
}

// Watch has changed called for each change that informer tells: old is nil for
// an object that is new, obj is nil for one that is gone. The objects are
// shared and must not be modified. T is the struct (corev1.Pod).
func Watch[T any](l *Loop, informer cache.SharedIndexInformer, changed func(old, obj *T)) {
	l.watches = append(l.watches, watch{informer, cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if t, ok := obj.(*T); ok {
				changed(nil, t)
			}
		},
		UpdateFunc: func(old, obj any) {
			o, _ := old.(*T)
			if t, ok := obj.(*T); ok {
				changed(o, t)
			}
		},
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if t, ok := obj.(*T); ok {
				changed(t, nil)
			}
		},
	}})
}

// WatchKeys has the key of each object that changes reconciled.
func (l *Loop) WatchKeys(informer cache.SharedIndexInformer) {
	add := func(obj any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
			l.Add(key)
		}
	}
	l.watches = append(l.watches, watch{informer, cache.ResourceEventHandlerFuncs{
		AddFunc: add, UpdateFunc: func(_, obj any) { add(obj) }, DeleteFunc: add,
	}})
}

// Needs makes Run wait for informer's first list without watching its changes.
func (l *Loop) Needs(informer cache.SharedIndexInformer) {
	l.watches = append(l.watches, watch{informer: informer})
}

// Run reconciles until ctx ends, and returns when the last Reconcile has. The
// informers must be started by the caller.
func (l *Loop) Run(ctx context.Context) error {
	defer l.queue.ShutDown()
	l.stats.loop.Store(l)
	defer l.stats.loop.CompareAndSwap(l, nil)
	remove, err := l.register(ctx)
	defer remove()
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	if l.Started != nil {
		l.Started(ctx)
	}
	var workers sync.WaitGroup
	for worker := range l.workers {
		workers.Go(func() {
			for l.next(ctx, &l.began[worker]) {
			}
		})
	}
	<-ctx.Done()
	l.queue.ShutDown()
	workers.Wait()
	return nil
}

// register adds the handlers and waits until each has seen the first list;
// remove takes them off again, so that a loop that stopped leaves nothing on
// the shared informers.
func (l *Loop) register(ctx context.Context) (remove func(), err error) {
	type registered struct {
		informer cache.SharedIndexInformer
		handle   cache.ResourceEventHandlerRegistration
	}
	var handles []registered
	remove = func() {
		for _, h := range handles {
			_ = h.informer.RemoveEventHandler(h.handle)
		}
	}
	var synced []cache.InformerSynced
	for _, w := range l.watches {
		if w.handler == nil {
			synced = append(synced, w.informer.HasSynced)
			continue
		}
		handle, err := w.informer.AddEventHandler(w.handler)
		if err != nil {
			return remove, fmt.Errorf("%s: watch: %w", l.name, err)
		}
		handles = append(handles, registered{w.informer, handle})
		synced = append(synced, handle.HasSynced)
	}
	if !waitSynced(ctx, synced) {
		return remove, fmt.Errorf("%s: stopped before its caches were full: %w", l.name, ctx.Err())
	}
	return remove, nil
}

// waitSynced polls, because informers offer no channel that every version of
// them closes; it ends with the first list.
func waitSynced(ctx context.Context, synced []cache.InformerSynced) bool {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for _, done := range synced {
		for !done() {
			select {
			case <-ctx.Done():
				return false
			case <-tick.C:
			}
		}
	}
	return true
}

func (l *Loop) next(ctx context.Context, began *atomic.Int64) bool {
	key, stop := l.queue.Get()
	if stop {
		return false
	}
	defer l.queue.Done(key)
	if ctx.Err() != nil {
		return false
	}
	start := time.Now()
	began.Store(start.UnixNano())
	after, err := l.reconcile(ctx, key)
	began.Store(0)
	l.stats.work.Observe(time.Since(start).Seconds())
	switch {
	case err == nil:
		l.queue.Forget(key)
		if after > 0 {
			l.AddAfter(key, after)
		}
	case ctx.Err() != nil:
	default:
		if n := l.queue.NumRequeues(key); n == loggedRetry && !apierrors.IsConflict(err) {
			l.log.Warn("reconcile keeps failing", "key", key, "err", err)
		}
		l.stats.retries.Add(1)
		l.queue.AddRateLimited(key)
	}
	return true
}

// reconcile makes an error of a panic: the API server runs in the same process, and one odd
// object must not end it, here and then wherever the next leader is.
func (l *Loop) reconcile(ctx context.Context, key string) (after time.Duration, err error) {
	defer func() {
		if p := recover(); p != nil {
			l.log.Error("reconcile panics", "key", key, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return l.Reconciler.Reconcile(ctx, key)
}

// Index adds an index to a shared informer unless another controller, or an
// earlier term of leadership, has added it.
func Index(informer cache.SharedIndexInformer, name string, fn cache.IndexFunc) error {
	if _, ok := informer.GetIndexer().GetIndexers()[name]; ok {
		return nil
	}
	if err := informer.AddIndexers(cache.Indexers{name: fn}); err != nil {
		if _, ok := informer.GetIndexer().GetIndexers()[name]; ok {
			return nil
		}
		return fmt.Errorf("index %s: %w", name, err)
	}
	return nil
}

// Sooner is the earlier of two waits until a key is reconciled again; 0 is none.
func Sooner(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// IgnoreGone drops the error that says that an object is not there any more.
func IgnoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
