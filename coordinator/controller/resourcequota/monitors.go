package resourcequota

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"github.com/shoal-project/shoal/coordinator/quota"
)

// monitor follows the objects of one resource.
type monitor struct {
	informer cache.SharedIndexInformer
	handle   cache.ResourceEventHandlerRegistration
	stop     func() // nil: the informer is shared
	done     chan struct{}
}

func (m *monitor) close() {
	_ = m.informer.RemoveEventHandler(m.handle)
	if m.stop != nil {
		m.stop()
		<-m.done
	}
}

// monitors are the resources that quotas are about.
type monitors struct {
	mu         sync.Mutex
	byResource map[schema.GroupResource]*monitor
}

func (m *monitors) get(gr schema.GroupResource) *monitor {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.byResource[gr]
}

func (m *monitors) close() {
	m.mu.Lock()
	all := m.byResource
	m.byResource = map[schema.GroupResource]*monitor{}
	m.mu.Unlock()
	for _, one := range all {
		one.close()
	}
}

// follow makes sure that a resource is monitored and counted; false: the API
// does not serve it (yet).
func (c *Controller) follow(gr schema.GroupResource) (bool, error) {
	if c.monitors.get(gr) != nil {
		return true, nil
	}
	gvr, served, err := c.find(gr)
	if err != nil || !served {
		return false, err
	}
	c.monitors.mu.Lock()
	defer c.monitors.mu.Unlock()
	if c.monitors.byResource[gr] != nil {
		return true, nil
	}
	mon, err := c.monitor(gvr)
	if err != nil {
		return false, err
	}
	c.monitors.byResource[gr] = mon
	if c.registry.Get(gr) == nil {
		c.registry.Add(generic.NewObjectCountEvaluator(gr, generic.ListResourceUsingListerFunc(c.lister, gvr), ""))
		c.addAll() // other quotas may have waited for it
	}
	return true, nil
}

// find asks discovery for the preferred version of a resource; what it does not
// know it asks anew.
func (c *Controller) find(gr schema.GroupResource) (schema.GroupVersionResource, bool, error) {
	for range 2 {
		gvr, err := c.mapper.ResourceFor(gr.WithVersion(""))
		if err == nil && gvr.GroupResource() == gr {
			return gvr, true, nil
		}
		if err != nil && !meta.IsNoMatchError(err) {
			return gvr, false, fmt.Errorf("find resource %s: %w", gr, err)
		}
		c.mapper.Reset()
	}
	return schema.GroupVersionResource{}, false, nil
}

// monitor watches by the shared informer when the factory knows the kind, so
// that nothing is held twice, else by a metadata informer of its own.
func (c *Controller) monitor(gvr schema.GroupVersionResource) (*monitor, error) {
	mon := &monitor{}
	shared, err := c.informers.ForResource(gvr)
	own := err != nil
	if own {
		mon.informer = metadatainformer.NewFilteredMetadataInformer(c.metadata, gvr, metav1.NamespaceAll, 0,
			cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}, nil).Informer()
		err := mon.informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
			if apierrors.IsNotFound(err) { // its CustomResourceDefinition is gone
				go c.forget(gvr.GroupResource(), mon)
			}
		})
		if err != nil {
			return nil, fmt.Errorf("watch %s: %w", gvr, err)
		}
	} else {
		mon.informer = shared.Informer()
		c.startAll()
	}
	if mon.handle, err = mon.informer.AddEventHandler(c.handler(gvr.GroupResource())); err != nil {
		return nil, fmt.Errorf("watch %s: %w", gvr, err)
	}
	if own {
		stop := make(chan struct{})
		mon.stop, mon.done = sync.OnceFunc(func() { close(stop) }), make(chan struct{})
		go func() {
			defer close(mon.done)
			mon.informer.Run(stop)
		}()
	}
	return mon, nil
}

// forget ends the monitor of a resource that is not served any more. A quota
// that still names it looks for it again.
func (c *Controller) forget(gr schema.GroupResource, mon *monitor) {
	c.monitors.mu.Lock()
	mine := c.monitors.byResource[gr] == mon
	if mine {
		delete(c.monitors.byResource, gr)
	}
	c.monitors.mu.Unlock()
	if !mine {
		return
	}
	if e := c.registry.Get(gr); e != nil {
		c.registry.Remove(e)
	}
	mon.close()
	c.addAll()
}

// lister serves the evaluators from the monitors. A resource that is not served
// has no objects.
func (c *Controller) lister(gvr schema.GroupVersionResource) (cache.GenericLister, error) {
	mon := c.monitors.get(gvr.GroupResource())
	if mon == nil {
		return cache.NewGenericLister(cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}),
			gvr.GroupResource()), nil
	}
	if !mon.informer.HasSynced() {
		return nil, fmt.Errorf("%s is not listed yet", gvr.GroupResource())
	}
	return cache.NewGenericLister(mon.informer.GetIndexer(), gvr.GroupResource()), nil
}

// What is deleted is counted soon, and many deletions once. What is created has
// been charged by admission; it is counted again later to be sure.
const (
	afterLess = 50 * time.Millisecond
	afterMore = time.Second
)

// handler has the quotas counted again that a change of objects is about.
func (c *Controller) handler(gr schema.GroupResource) cache.ResourceEventHandler {
	again := func(obj any, after time.Duration) {
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		if o, err := meta.Accessor(obj); err == nil {
			c.again(gr, o.GetNamespace(), after)
		}
	}
	return cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, first bool) {
			if !first {
				again(obj, afterMore)
			}
		},
		UpdateFunc: func(old, obj any) {
			if changed(old, obj) {
				again(obj, afterLess)
			}
		},
		DeleteFunc: func(obj any) { again(obj, afterLess) },
	}
}

func changed(old, obj any) bool {
	switch o := obj.(type) {
	case *corev1.Pod:
		was, ok := old.(*corev1.Pod)
		return ok && quota.PodChanged(was, o, time.Now())
	case *corev1.Service:
		was, ok := old.(*corev1.Service)
		return ok && quota.ServiceChanged(was, o)
	case *corev1.PersistentVolumeClaim:
		was, ok := old.(*corev1.PersistentVolumeClaim)
		return ok && quota.ClaimChanged(was, o)
	}
	return false
}

var _ quotav1.ListerForResourceFunc = (*Controller)(nil).lister
