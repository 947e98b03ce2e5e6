package store

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
)

// sharing is the storage of a kind whose objects readers in this process can
// have as the watch cache has them: the same pointers.
type sharing struct {
	*cacher.CacheDelegator
	source *source
}

// Follow hands out every object as an Added event, then a bookmark with
// metav1.InitialEventsAnnotationKey, then each change. The objects are those of
// the watch cache: nobody may modify them. The stream ends only by Stop; an
// object that changed while etcd's watch was broken comes as one change.
func (s *sharing) Follow() watch.Interface { return s.source.follow() }

// source stands between etcd and one watch cache. What passes, each object
// decoded once, goes to the followers too. The library's own watches copy each
// object for each watcher.
type source struct {
	watched
	newObject func() runtime.Object

	mu sync.Mutex
	// objects are what the watch cache holds, at version; nil before it is full.
	objects map[types.NamespacedName]runtime.Object
	version string
	// reached is the revision that the watch is known to have reached, asking the
	// context to ask it for more with.
	reached uint64
	asking  context.Context
	// filling collects a new state until it is whole; nil at other times.
	filling   map[types.NamespacedName]runtime.Object
	run       int // counts the lists and watches of the cache's reflector
	followers map[*follower]struct{}
}

func newSource(s storage.Interface, stalled *stalled, newObject func() runtime.Object) *source {
	return &source{watched: watched{s, stalled}, newObject: newObject, followers: map[*follower]struct{}{}}
}

// GetCurrentResourceVersion is asked before a consistent read, which then waits
// until the cache has reached that revision. Another kind's writes raise it too,
// so the watch is made to tell now; the library would do so a tenth of a second
// after the last time.
func (s *source) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	current, err := s.Interface.GetCurrentResourceVersion(ctx)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	asking := s.asking
	if s.reached >= current {
		asking = nil
	}
	s.mu.Unlock()
	if asking != nil {
		// When it fails the library's own request follows.
		_ = s.RequestWatchProgress(asking)
	}
	return current, nil
}

// GetList notes the list of the watch cache's reflector, page by page.
func (s *source) GetList(ctx context.Context, key string, o storage.ListOptions, list runtime.Object) error {
	if err := s.Interface.GetList(ctx, key, o, list); err != nil {
		return err
	}
	m, err := meta.ListAccessor(list)
	if err != nil {
		return fmt.Errorf("list of %s: %w", key, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.Predicate.Continue == "" {
		s.run++
		s.filling = map[types.NamespacedName]runtime.Object{}
	}
	if s.filling == nil {
		return nil
	}
	err = meta.EachListItem(list, func(obj runtime.Object) error {
		s.filling[nameOf(obj)] = obj
		return nil
	})
	if err == nil && m.GetContinue() == "" {
		s.filled(m.GetResourceVersion())
	}
	return err
}

// Watch passes on what the watch cache's reflector watches.
func (s *source) Watch(ctx context.Context, key string, o storage.ListOptions) (watch.Interface, error) {
	w, err := s.Interface.Watch(ctx, key, o)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.run++
	s.filling, s.asking = nil, ctx
	if o.SendInitialEvents != nil && *o.SendInitialEvents {
		s.filling = map[types.NamespacedName]runtime.Object{}
	}
	p := &passing{Interface: w, out: make(chan watch.Event), done: make(chan struct{})}
	go p.run(s, s.run)
	return p, nil
}

// passing is a watch whose events are noted as they pass.
type passing struct {
	watch.Interface
	out  chan watch.Event
	once sync.Once
	done chan struct{}
}

func (p *passing) run(s *source, run int) {
	defer close(p.out)
	for e := range p.Interface.ResultChan() {
		s.note(run, e)
		select {
		case p.out <- e:
		case <-p.done:
			return
		}
	}
}

func (p *passing) ResultChan() <-chan watch.Event { return p.out }

func (p *passing) Stop() {
	p.once.Do(func() { close(p.done) })
	p.Interface.Stop()
}

// note keeps what an event says and tells the followers, unless the watch that
// it comes from has been replaced.
func (s *source) note(run int, e watch.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if run != s.run || e.Type == watch.Error {
		return
	}
	m, err := meta.Accessor(e.Object)
	if err != nil {
		return
	}
	if v, err := s.Versioner().ParseResourceVersion(m.GetResourceVersion()); err == nil && s.filling == nil {
		s.reached = v
	}
	if e.Type == watch.Bookmark {
		if s.filling != nil && m.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
			s.filled(m.GetResourceVersion())
		}
		return
	}
	state := s.objects
	if s.filling != nil {
		state = s.filling
	}
	if state == nil {
		return // a watch from a version before any list
	}
	name := types.NamespacedName{Namespace: m.GetNamespace(), Name: m.GetName()}
	if e.Type == watch.Deleted {
		delete(state, name)
	} else {
		state[name] = e.Object
	}
	if s.filling != nil {
		return
	}
	s.version = m.GetResourceVersion()
	for f := range s.followers {
		f.add(e)
	}
}

// filled takes the new state over; s.mu is held. Followers that know the old
// one are told the difference.
func (s *source) filled(version string) {
	first := s.objects == nil
	old := s.objects
	s.objects, s.filling, s.version = s.filling, nil, version
	for f := range s.followers {
		if first {
			f.add(s.initial()...)
		} else {
			f.add(difference(old, s.objects)...)
		}
	}
}

// initial is the state as events; s.mu is held.
func (s *source) initial() []watch.Event {
	events := make([]watch.Event, 0, len(s.objects)+1)
	for _, obj := range s.objects {
		events = append(events, watch.Event{Type: watch.Added, Object: obj})
	}
	end := s.newObject()
	if m, err := meta.Accessor(end); err == nil {
		m.SetResourceVersion(s.version)
		m.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	return append(events, watch.Event{Type: watch.Bookmark, Object: end})
}

// difference is what makes one state the other.
func difference(from, to map[types.NamespacedName]runtime.Object) []watch.Event {
	var events []watch.Event
	for name, obj := range from {
		if to[name] == nil {
			events = append(events, watch.Event{Type: watch.Deleted, Object: obj})
		}
	}
	for name, obj := range to {
		switch known := from[name]; {
		case known == nil:
			events = append(events, watch.Event{Type: watch.Added, Object: obj})
		case versionOf(known) != versionOf(obj):
			events = append(events, watch.Event{Type: watch.Modified, Object: obj})
		}
	}
	return events
}

func nameOf(obj runtime.Object) types.NamespacedName {
	m, err := meta.Accessor(obj)
	if err != nil {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: m.GetNamespace(), Name: m.GetName()}
}

func versionOf(obj runtime.Object) string {
	m, err := meta.Accessor(obj)
	if err != nil {
		return ""
	}
	return m.GetResourceVersion()
}

func (s *source) follow() *follower {
	f := &follower{wake: make(chan struct{}, 1), out: make(chan watch.Event), done: make(chan struct{})}
	f.forget = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.followers, f)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.followers[f] = struct{}{}
	if s.objects != nil {
		f.add(s.initial()...)
	}
	go f.run()
	return f
}

// follower is the watch of one reader. Its events wait for it without a limit:
// the watch cache must not wait, and readers are informers, which only put each
// event into a queue of their own.
type follower struct {
	mu      sync.Mutex
	waiting []watch.Event
	wake    chan struct{}
	out     chan watch.Event
	once    sync.Once
	done    chan struct{}
	forget  func()
}

func (f *follower) add(events ...watch.Event) {
	f.mu.Lock()
	f.waiting = append(f.waiting, events...)
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *follower) run() {
	defer close(f.out)
	for {
		select {
		case <-f.wake:
		case <-f.done:
			return
		}
		f.mu.Lock()
		events := f.waiting
		f.waiting = nil
		f.mu.Unlock()
		for _, e := range events {
			select {
			case f.out <- e:
			case <-f.done:
				return
			}
		}
	}
}

// ResultChan implements watch.Interface.
func (f *follower) ResultChan() <-chan watch.Event { return f.out }

// Stop implements watch.Interface.
func (f *follower) Stop() {
	f.once.Do(func() {
		close(f.done)
		f.forget()
	})
}
