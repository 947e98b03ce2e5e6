package garbagecollector

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
)

const (
	// discoveryPause is how long discovery is given to follow a CRD's or APIService's
	// change; many changes in it are one look.
	discoveryPause = 250 * time.Millisecond
	// retryDiscovery is how long until a failed discovery is tried again.
	retryDiscovery = 10 * time.Second
	// fillFor bounds the wait for the first lists.
	fillFor = 15 * time.Second
)

// monitor feeds one resource's objects to the graph.
type monitor struct {
	res      *resource
	informer cache.SharedIndexInformer
	handle   cache.ResourceEventHandlerRegistration
	stop     context.CancelFunc // nil for a shared informer
	done     chan struct{}
}

func (m *monitor) close() {
	_ = m.informer.RemoveEventHandler(m.handle)
	if m.stop != nil {
		m.stop()
		<-m.done
	}
}

// monitors keeps one monitor for each resource that discovery names.
type monitors struct {
	c     *Collector
	mu    sync.Mutex
	byGR  map[schema.GroupResource]*monitor
	kinds map[schema.GroupKind]*resource
	dirty chan struct{}
}

func (m *monitors) kind(gk schema.GroupKind) *resource {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kinds[gk]
}

// ignored are resources with too many objects that own nothing and are owned by
// nothing: they have a life of their own.
var ignored = map[schema.GroupResource]bool{
	{Resource: "events"}:                         true,
	{Group: "events.k8s.io", Resource: "events"}: true,
}

// discovered lists the resources that can be listed, watched and deleted.
func discovered(lists []*metav1.APIResourceList) map[schema.GroupResource]*resource {
	out := map[schema.GroupResource]*resource{}
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			continue
		}
		for _, r := range l.APIResources {
			gvr := gv.WithResource(r.Name)
			if ignored[gvr.GroupResource()] || !slices.Contains(r.Verbs, "delete") ||
				!slices.Contains(r.Verbs, "list") || !slices.Contains(r.Verbs, "watch") {
				continue
			}
			out[gvr.GroupResource()] = &resource{gvr: gvr, gvk: gv.WithKind(r.Kind), namespaced: r.Namespaced}
		}
	}
	return out
}

// refresh follows discovery: new resources are watched, vanished ones are
// forgotten. A failed group keeps what it had.
func (m *monitors) refresh(ctx context.Context) error {
	lists, err := m.c.discovery.ServerPreferredResources()
	if len(lists) == 0 && err != nil {
		return fmt.Errorf("discovery: %w", err)
	}
	want := discovered(lists)
	m.mu.Lock()
	defer m.mu.Unlock()
	for gr, mon := range m.byGR {
		res := want[gr]
		if res == nil && unknown(gr.Group, err) || res != nil && res.gvr == mon.res.gvr && res.gvk == mon.res.gvk {
			continue
		}
		mon.close()
		delete(m.byGR, gr)
		delete(m.kinds, mon.res.gvk.GroupKind())
		m.c.graph.dropResource(mon.res)
	}
	var waits []cache.InformerSynced
	for gr, res := range want {
		if m.byGR[gr] != nil {
			continue
		}
		mon, startErr := m.start(ctx, res)
		if startErr != nil {
			return startErr
		}
		m.byGR[gr], m.kinds[res.gvk.GroupKind()] = mon, res
		waits = append(waits, mon.handle.HasSynced)
	}
	if !m.c.ready.Load() {
		m.fill(ctx, waits)
	}
	return err
}

// unknown tells whether an error of discovery leaves open what a group has.
func unknown(group string, err error) bool {
	var failed *discovery.ErrGroupDiscoveryFailed
	if !errors.As(err, &failed) {
		return err != nil
	}
	for gv := range failed.Groups {
		if gv.Group == group {
			return true
		}
	}
	return false
}

// fill waits for the first lists, but not for ever: a broken aggregated API must
// not stop collection elsewhere, and what the graph lacks is asked of the API.
func (m *monitors) fill(ctx context.Context, waits []cache.InformerSynced) {
	ctx, cancel := context.WithTimeout(ctx, fillFor)
	defer cancel()
	if !cache.WaitForCacheSync(ctx.Done(), waits...) && ctx.Err() == context.DeadlineExceeded {
		m.c.log.Warn("garbage collection starts before all resources are listed")
	}
}

// start watches a resource: by the shared informer when the factory knows the
// kind, so that nothing is held twice, else by a metadata informer of our own.
func (m *monitors) start(ctx context.Context, res *resource) (*monitor, error) {
	mon := &monitor{res: res}
	shared, noShared := m.c.informers.ForResource(res.gvr)
	if noShared == nil {
		mon.informer = shared.Informer()
		m.c.startAll()
	} else {
		mon.informer = metadatainformer.NewFilteredMetadataInformer(m.c.metadata, res.gvr, metav1.NamespaceAll, 0,
			cache.Indexers{}, nil).Informer()
	}
	handle, err := mon.informer.AddEventHandler(m.c.handler(res))
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", res.gvr, err)
	}
	mon.handle = handle
	if noShared != nil {
		own, stop := context.WithCancel(ctx)
		mon.stop, mon.done = stop, make(chan struct{})
		go func() {
			defer close(mon.done)
			mon.informer.RunWithContext(own)
		}()
	}
	return mon, nil
}

func (m *monitors) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for gr, mon := range m.byGR {
		mon.close()
		delete(m.byGR, gr)
	}
}

// run refreshes when a CRD or APIService has changed.
func (m *monitors) run(ctx context.Context, failed error) {
	for {
		var retry <-chan time.Time
		if failed != nil {
			retry = time.After(retryDiscovery)
		}
		select {
		case <-ctx.Done():
			return
		case <-retry:
		case <-m.dirty:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(discoveryPause):
		}
		select {
		case <-m.dirty:
		default:
		}
		failed = m.refresh(ctx)
	}
}

// changesDiscovery tells whether objects of a resource add or remove resources.
func changesDiscovery(gr schema.GroupResource) bool {
	return gr == schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"} ||
		gr == schema.GroupResource{Group: "apiregistration.k8s.io", Resource: "apiservices"}
}

// handler feeds a resource's events to the graph.
func (c *Collector) handler(res *resource) cache.ResourceEventHandler {
	poke := func() {}
	if changesDiscovery(res.gvr.GroupResource()) {
		poke = func() {
			select {
			case c.monitors.dirty <- struct{}{}:
			default:
			}
		}
	}
	put := func(obj any) {
		if m, err := meta.Accessor(obj); err == nil {
			c.look(c.graph.put(nodeOf(res, m)))
		}
		poke()
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    put,
		UpdateFunc: func(_, obj any) { put(obj) },
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if m, err := meta.Accessor(obj); err == nil {
				c.look(c.graph.remove(m.GetUID()))
			}
			poke()
		},
	}
}
