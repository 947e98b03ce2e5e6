package service

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/shoal-project/shoal/agent/api"
)

// Config of a Source.
type Config struct {
	Client kubernetes.Interface // nil: only what the file holds
	Node   string
	File   string // the last known state, so that Services work without an API; "": none
	Own    Own
	Log    *slog.Logger
}

// Source keeps the tables true to the API server's Services and EndpointSlices.
// While the API was never reached it serves the state of the file.
type Source struct {
	cfg Config
	log *slog.Logger

	mu       sync.Mutex
	services map[Key][]byte      // encoded
	slices   map[Key][]heldSlice // by Service; sorted by name
	owner    map[Key]Key         // slice to Service
	dirty    map[Key]bool        // to be rebuilt
	view     View
	listed   [kinds]bool         // a full list has come
	unsaved  [kinds]map[Key]bool // what the file does not have yet
	tables   *Tables             // nil until known; replaced, never changed
	subs     []chan struct{}
	wake     chan struct{}

	inFile bool // the file holds all but unsaved; only save uses it
	added  int  // changes in the file since it was written anew
	// triggers are the times of what changed endpoints since begun, for Triggers.
	triggers []time.Time
	begun    time.Time
	// failing: it was told that the file cannot be written.
	failing bool
}

// The kinds of objects.
const (
	serviceKind = iota
	sliceKind
	kinds
)

// NewSource reads nothing yet.
func NewSource(cfg Config) *Source {
	s := &Source{
		cfg: cfg, log: cfg.Log, view: View{Node: cfg.Node, Own: cfg.Own},
		services: map[Key][]byte{}, slices: map[Key][]heldSlice{},
		owner: map[Key]Key{}, dirty: map[Key]bool{}, wake: make(chan struct{}, 1),
		unsaved: [kinds]map[Key]bool{{}, {}}, begun: time.Now(),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	return s
}

// Tables returns the current tables, nil as long as nothing is known. The
// caller must not change them.
func (s *Source) Tables() *Tables {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tables
}

// Synced tells whether the tables come from the API server.
func (s *Source) Synced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.synced()
}

func (s *Source) synced() bool { return s.listed[serviceKind] && s.listed[sliceKind] }

// Changed returns a new subscription: a channel that holds one token whenever
// Tables answers differently than before.
func (s *Source) Changed() <-chan struct{} {
	c := make(chan struct{}, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subs = append(s.subs, c)
	if s.tables != nil {
		c <- struct{}{}
	}
	return c
}

// SetDown tells which nodes gossip calls dead. Only Services with an endpoint
// on a node that died or came back are looked at.
func (s *Source) SetDown(down map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	moved := func(node string) bool { return s.view.Down[node] != down[node] }
	for k, held := range s.slices {
		if slices.ContainsFunc(held, func(h heldSlice) bool { return slices.ContainsFunc(h.nodes, moved) }) {
			s.dirty[k] = true
		}
	}
	s.view.Down = maps.Clone(down)
	if len(s.dirty) > 0 {
		s.poke()
	}
}

// SetNodes tells the addresses of nodes. Only Services with such an external
// address are looked at.
func (s *Source) SetNodes(addrs []netip.Addr) {
	next := make(map[netip.Addr]bool, len(addrs))
	for _, a := range addrs {
		next[a] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if maps.Equal(s.view.Nodes, next) {
		return
	}
	moved := func(a netip.Addr) bool { return s.view.Nodes[a] != next[a] }
	for k, v := range s.tables.All() {
		if slices.ContainsFunc(v.ExternalIPs, moved) || slices.ContainsFunc(v.Refused, moved) {
			s.dirty[k] = true
		}
	}
	s.view.Nodes = next
	if len(s.dirty) > 0 {
		s.poke()
	}
}

// SetZone tells this node's zone.
func (s *Source) SetZone(zone string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.view.Zone == zone {
		return
	}
	s.view.Zone = zone
	for k := range s.services {
		s.dirty[k] = true
	}
	s.poke()
}

// poke wakes the builder; the caller holds s.mu.
func (s *Source) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

const (
	// fileAfter is how long the API has to answer before the file is used:
	// after a restart of this process alone the file may be older than the
	// rules in the kernel.
	fileAfter = 1500 * time.Millisecond
	// saveAfter gathers changes before the file is written: what a power cut
	// may take from the file.
	saveAfter = 200 * time.Millisecond
)

// Run watches and builds until ctx ends.
func (s *Source) Run(ctx context.Context) error {
	eg, ctx := errgroup.WithContext(ctx)
	if s.cfg.Client != nil {
		eg.Go(func() error { s.watchServices(ctx); return nil })
		eg.Go(func() error { s.watchSlices(ctx); return nil })
	}
	eg.Go(func() error { return s.build(ctx) })
	return eg.Wait()
}

func (s *Source) build(ctx context.Context) error {
	grace := time.NewTimer(fileAfter)
	defer grace.Stop()
	if s.cfg.Client == nil {
		grace.Reset(0)
	}
	var save <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			if save != nil {
				s.save()
			}
			return nil
		case <-grace.C:
			s.restore()
		case <-s.wake:
		case <-save:
			save = nil
			s.save()
		}
		s.rebuild()
		if save == nil && s.toSave() {
			save = time.After(saveAfter)
		}
	}
}

// rebuild makes new values for what is dirty and tells the subscribers.
func (s *Source) rebuild() {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.tables == nil
	if first && !s.synced() && !s.view.Recorded {
		return
	}
	if s.view.Recorded && s.synced() {
		s.view.Recorded = false
		for k := range s.services {
			s.dirty[k] = true
		}
	}
	change := map[Key]*Service{}
	for k := range s.dirty {
		v, old := s.one(k), s.tables.Get(k)
		if v == nil && old != nil || v != nil && !reflect.DeepEqual(v, old) {
			change[k] = v
		}
	}
	clear(s.dirty)
	if len(change) == 0 && !first {
		return
	}
	s.tables = s.tables.With(change)
	for _, c := range s.subs {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// restore takes the file's state if the API has given none yet. Nobody sees the tables
// before rebuild has made them: empty ones say that there is no Service.
func (s *Source) restore() {
	if s.cfg.File == "" {
		return
	}
	st, err := readFile(s.cfg.File)
	if err != nil {
		s.log.Warn("last known Services are lost; waiting for the API server", "file", s.cfg.File, "err", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if st == nil || s.synced() {
		return
	}
	for _, o := range st.Services {
		s.putService(o)
	}
	for _, o := range st.Slices {
		s.putSlice(o)
	}
	s.view.Recorded = true
}

func (s *Source) watchServices(ctx context.Context) {
	c := s.cfg.Client.CoreV1().Services(metav1.NamespaceAll)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return c.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.Watch(ctx, o)
		},
	}
	s.reflect(ctx, lw, &corev1.Service{}, store[*corev1.Service]{
		Source: s, kind: serviceKind, put: s.putService, drop: s.dropService,
		all: func() iter.Seq[Key] { return maps.Keys(s.services) },
	})
}

func (s *Source) watchSlices(ctx context.Context) {
	c := s.cfg.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceAll)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return c.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.Watch(ctx, o)
		},
	}
	s.reflect(ctx, lw, &discoveryv1.EndpointSlice{}, store[*discoveryv1.EndpointSlice]{
		Source: s, kind: sliceKind, put: s.putSlice, drop: s.dropSlice,
		all: func() iter.Seq[Key] { return maps.Keys(s.owner) },
	})
}

func (s *Source) reflect(ctx context.Context, lw *cache.ListWatch, kind runtime.Object, st cache.ReflectorStore) {
	r := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, s.cfg.Client), kind, st,
		cache.ReflectorOptions{Name: "service", Backoff: api.Retry()})
	r.RunWithContext(ctx)
}

// store takes a reflector's objects; it implements cache.ReflectorStore.
type store[T metav1.Object] struct {
	*Source
	kind int
	put  func(T)
	drop func(Key)
	all  func() iter.Seq[Key]
}

func keyOf(o metav1.Object) Key { return Key{o.GetNamespace(), o.GetName()} }

func (st store[T]) with(obj any, do func(T)) error {
	o, ok := obj.(T)
	if !ok {
		return fmt.Errorf("unexpected object %T", obj)
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	do(o)
	st.poke()
	return nil
}

func (st store[T]) Add(obj any) error    { return st.with(obj, st.put) }
func (st store[T]) Update(obj any) error { return st.with(obj, st.put) }
func (st store[T]) Delete(obj any) error { return st.with(obj, func(o T) { st.drop(keyOf(o)) }) }
func (st store[T]) Resync() error        { return nil }

// Replace takes a full list. What is as it was is not touched.
func (st store[T]) Replace(objs []any, _ string) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	var errs []error
	listed := make(map[Key]bool, len(objs))
	for _, obj := range objs {
		o, ok := obj.(T)
		if !ok {
			errs = append(errs, fmt.Errorf("unexpected object %T", obj))
			continue
		}
		listed[keyOf(o)] = true
		st.put(o)
	}
	for k := range st.all() {
		if !listed[k] {
			st.drop(k)
		}
	}
	st.listed[st.kind] = true
	st.poke()
	return errors.Join(errs...)
}
