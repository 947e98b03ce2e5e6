package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
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
)

// Config of a Source.
type Config struct {
	Client kubernetes.Interface // nil: only what the file holds
	Node   string
	File   string // the last known state, so that Services work without an API; "": none
	Log    *slog.Logger
}

// Source keeps the tables true to the API server's Services and EndpointSlices.
// While the API was never reached it serves the state of the file.
type Source struct {
	cfg Config
	log *slog.Logger

	mu       sync.Mutex
	services map[Key]*corev1.Service
	slices   map[Key]map[string]*discoveryv1.EndpointSlice // by Service, then slice name
	owner    map[Key]Key                                   // slice to Service
	dirty    map[Key]bool                                  // to be rebuilt
	all      bool                                          // everything is to be rebuilt
	view     View
	listed   [2]bool // Services, EndpointSlices: a full list has come
	tables   Tables  // nil until known; replaced, never changed
	subs     []chan struct{}
	wake     chan struct{}
}

// NewSource reads nothing yet.
func NewSource(cfg Config) *Source {
	s := &Source{
		cfg: cfg, log: cfg.Log, view: View{Node: cfg.Node},
		services: map[Key]*corev1.Service{}, slices: map[Key]map[string]*discoveryv1.EndpointSlice{},
		owner: map[Key]Key{}, dirty: map[Key]bool{}, wake: make(chan struct{}, 1),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	return s
}

// Tables returns the current tables, nil as long as nothing is known. The
// caller must not change them.
func (s *Source) Tables() Tables {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tables
}

// Synced tells whether the tables come from the API server.
func (s *Source) Synced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listed[0] && s.listed[1]
}

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

// SetDown tells which nodes gossip calls dead.
func (s *Source) SetDown(down map[string]bool) {
	s.setView(func(v *View) bool {
		if maps.Equal(v.Down, down) {
			return false
		}
		v.Down = maps.Clone(down)
		return true
	})
}

// SetZone tells this node's zone.
func (s *Source) SetZone(zone string) {
	s.setView(func(v *View) bool {
		old := v.Zone
		v.Zone = zone
		return old != zone
	})
}

func (s *Source) setView(change func(*View) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if change(&s.view) {
		s.all = true
		s.poke()
	}
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
	unsaved := false
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
			save, unsaved = nil, false
			s.save()
		}
		unsaved = s.rebuild() || unsaved
		if unsaved && save == nil && s.Synced() && s.cfg.File != "" {
			save = time.After(saveAfter)
		}
	}
}

// rebuild makes new values for what is dirty and tells the subscribers. It
// returns whether anything changed.
func (s *Source) rebuild() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tables == nil && !(s.listed[0] && s.listed[1]) {
		return false
	}
	if s.all {
		for k := range s.services {
			s.dirty[k] = true
		}
		for k := range s.tables {
			s.dirty[k] = true
		}
		s.all = false
	}
	if len(s.dirty) == 0 && s.tables != nil {
		return false
	}
	next, changed := make(Tables, len(s.services)), s.tables == nil
	maps.Copy(next, s.tables)
	for k := range s.dirty {
		svc := s.services[k]
		if svc == nil {
			changed = changed || next[k] != nil
			delete(next, k)
			continue
		}
		slcs := make([]*discoveryv1.EndpointSlice, 0, len(s.slices[k]))
		for _, sl := range s.slices[k] {
			slcs = append(slcs, sl)
		}
		if v := BuildOne(svc, slcs, s.view); !reflect.DeepEqual(v, next[k]) {
			next[k], changed = v, true
		}
	}
	clear(s.dirty)
	if !changed {
		return false
	}
	s.tables = next
	for _, c := range s.subs {
		select {
		case c <- struct{}{}:
		default:
		}
	}
	return true
}

// restore takes the file's state if the API has given none yet.
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
	if st == nil || s.listed[0] && s.listed[1] {
		return
	}
	for _, o := range st.Services {
		s.putService(o)
	}
	for _, o := range st.Slices {
		s.putSlice(o)
	}
	s.tables = Tables{}
}

func (s *Source) save() {
	s.mu.Lock()
	st := &state{}
	for _, o := range s.services {
		st.Services = append(st.Services, o)
	}
	for _, m := range s.slices {
		for _, o := range m {
			st.Slices = append(st.Slices, o)
		}
	}
	s.mu.Unlock()
	if err := writeFile(s.cfg.File, st); err != nil {
		s.log.Warn("cannot keep Services for a start without the API server", "err", err)
	}
}

func (s *Source) watchServices(ctx context.Context) {
	c := s.cfg.Client.CoreV1().Services(metav1.NamespaceAll)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return c.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.Watch(ctx, o)
		},
	}
	s.reflect(ctx, lw, &corev1.Service{}, store[*corev1.Service]{
		Source: s, index: 0, put: s.putService, drop: s.dropService,
		clear: func() {
			for _, o := range s.services {
				s.dropService(o)
			}
		},
	})
}

func (s *Source) watchSlices(ctx context.Context) {
	c := s.cfg.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceAll)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return c.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.Watch(ctx, o)
		},
	}
	s.reflect(ctx, lw, &discoveryv1.EndpointSlice{}, store[*discoveryv1.EndpointSlice]{
		Source: s, index: 1, put: s.putSlice, drop: s.dropSlice,
		clear: func() {
			for _, m := range s.slices {
				for _, o := range m {
					s.dropSlice(o)
				}
			}
		},
	})
}

func (s *Source) reflect(ctx context.Context, lw *cache.ListWatch, kind runtime.Object, st cache.ReflectorStore) {
	r := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, s.cfg.Client), kind, st, cache.ReflectorOptions{Name: "service"})
	r.RunWithContext(ctx)
}

// The functions below are called with s.mu held.

func (s *Source) putService(o *corev1.Service) {
	o.ManagedFields, o.Annotations, o.OwnerReferences, o.Spec.Selector = nil, nil, nil, nil
	k := Key{o.Namespace, o.Name}
	s.services[k] = o
	s.dirty[k] = true
}

func (s *Source) dropService(o *corev1.Service) {
	k := Key{o.Namespace, o.Name}
	delete(s.services, k)
	s.dirty[k] = true
}

func (s *Source) putSlice(o *discoveryv1.EndpointSlice) {
	s.dropSlice(o) // also under another Service, had its label changed
	k, ok := sliceKey(o)
	if !ok {
		return
	}
	o.ManagedFields, o.Annotations, o.OwnerReferences = nil, nil, nil
	o.Labels = map[string]string{discoveryv1.LabelServiceName: k.Name}
	for i := range o.Endpoints {
		o.Endpoints[i].TargetRef, o.Endpoints[i].DeprecatedTopology = nil, nil
	}
	if s.slices[k] == nil {
		s.slices[k] = map[string]*discoveryv1.EndpointSlice{}
	}
	s.slices[k][o.Name] = o
	s.owner[Key{o.Namespace, o.Name}] = k
	s.dirty[k] = true
}

func (s *Source) dropSlice(o *discoveryv1.EndpointSlice) {
	id := Key{o.Namespace, o.Name}
	k, ok := s.owner[id]
	if !ok {
		return
	}
	delete(s.owner, id)
	delete(s.slices[k], o.Name)
	if len(s.slices[k]) == 0 {
		delete(s.slices, k)
	}
	s.dirty[k] = true
}

// store takes a reflector's objects; it implements cache.ReflectorStore.
type store[T runtime.Object] struct {
	*Source
	index     int
	put, drop func(T)
	clear     func()
}

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
func (st store[T]) Delete(obj any) error { return st.with(obj, st.drop) }
func (st store[T]) Resync() error        { return nil }

// Replace takes a full list.
func (st store[T]) Replace(objs []any, _ string) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.clear()
	var errs []error
	for _, obj := range objs {
		if o, ok := obj.(T); ok {
			st.put(o)
		} else {
			errs = append(errs, fmt.Errorf("unexpected object %T", obj))
		}
	}
	st.listed[st.index] = true
	st.poke()
	return errors.Join(errs...)
}
