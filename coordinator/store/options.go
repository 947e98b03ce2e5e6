package store

import (
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/registry/generic"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
)

const (
	// prefix is upstream's, so that tools that look into etcd find their way.
	prefix       = "/registry"
	protobufType = "application/vnd.kubernetes.protobuf"
	// eventsWindow is how long the watch cache keeps changes at least.
	eventsWindow  = 75 * time.Second
	deleteWorkers = 4
)

// specialPrefixes are keys that differ from the resource's name, as upstream's.
var specialPrefixes = map[schema.GroupResource]string{
	{Resource: "replicationcontrollers"}:                                   "controllers",
	{Resource: "endpoints"}:                                                "services/endpoints",
	{Resource: "services"}:                                                 "services/specs",
	{Resource: "nodes"}:                                                    "minions",
	{Resource: "servicenodeportallocations"}:                               "ranges/servicenodeports",
	{Group: "networking.k8s.io", Resource: "ingresses"}:                    "ingress",
	{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}: "apiextensions.k8s.io/customresourcedefinitions",
	{Group: "apiregistration.k8s.io", Resource: "apiservices"}:             "apiregistration.k8s.io/apiservices",
}

// Options returns the storage options of the resources of a scheme, stored as
// protobuf in the group's preferred version.
func (s *Store) Options(scheme *runtime.Scheme, codecs serializer.CodecFactory) generic.RESTOptionsGetter {
	return &options{store: s, shared: true,
		codec: func(gr schema.GroupResource) (runtime.Codec, runtime.GroupVersioner, error) {
			versions := scheme.PrioritizedVersionsForGroup(gr.Group)
			if len(versions) == 0 {
				return nil, nil, fmt.Errorf("storage of %s: group has no version", gr)
			}
			return serverstorage.NewStorageCodec(serverstorage.StorageCodecConfig{
				StorageMediaType:  protobufType,
				StorageSerializer: codecs,
				StorageVersion:    versions[0],
				MemoryVersion:     schema.GroupVersion{Group: gr.Group, Version: runtime.APIVersionInternal},
			})
		}, prefix: func(gr schema.GroupResource) string {
			if p, ok := specialPrefixes[gr]; ok {
				return p
			}
			return gr.Resource
		}}
}

// CustomOptions returns the storage options of custom resources, stored as JSON.
// Nothing in this process follows them in their caches.
func (s *Store) CustomOptions() generic.RESTOptionsGetter {
	return &options{store: s, codec: func(schema.GroupResource) (runtime.Codec, runtime.GroupVersioner, error) {
		return unstructured.UnstructuredJSONScheme, nil, nil
	}, prefix: func(gr schema.GroupResource) string { return gr.Group + "/" + gr.Resource }}
}

type options struct {
	store *Store
	// shared storages hand out the objects of their caches (Follow).
	shared bool
	codec  func(schema.GroupResource) (runtime.Codec, runtime.GroupVersioner, error)
	prefix func(schema.GroupResource) string
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (o *options) GetRESTOptions(gr schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	codec, versioner, err := o.codec(gr)
	if err != nil {
		return generic.RESTOptions{}, err
	}
	config := storagebackend.NewDefaultConfig(prefix, codec)
	config.EncodeVersioner = versioner
	config.EventsHistoryWindow = eventsWindow
	return generic.RESTOptions{
		StorageConfig:           config.ForResource(gr),
		Decorator:               o.cached,
		EnableGarbageCollection: true,
		DeleteCollectionWorkers: deleteWorkers,
		ResourcePrefix:          o.prefix(gr),
	}, nil
}

// uncached are resources that are written much more than read. Upstream keeps
// no watch cache of them either.
var uncached = map[schema.GroupResource]bool{
	{Resource: "events"}: true, {Group: "events.k8s.io", Resource: "events"}: true,
	{Resource: "servicenodeportallocations"}: true,
}

// cached is the generic.StorageDecorator of every resource: etcd behind a watch
// cache, all on the one client.
func (o *options) cached(c *storagebackend.ConfigForResource, resourcePrefix string,
	keyFunc func(runtime.Object) (string, error),
	newFunc, newListFunc func() runtime.Object, attrs storage.AttrFunc, trigger storage.IndexerFuncs,
	indexers *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	versioner := storage.APIObjectVersioner{}
	o.store.notes(c.GroupResource, c.Prefix, resourcePrefix)
	transformer := o.store.transformer(c.GroupResource)
	seen := &weighing{Transformer: transformer}
	if uncached[c.GroupResource] {
		transformer = seen
	}
	raw, err := etcd3.New(o.store.client, o.store.compactor, c.Codec, newFunc, newListFunc, c.Prefix,
		resourcePrefix, c.GroupResource,
		transformer, c.LeaseManagerConfig,
		etcd3.NewDefaultDecoder(c.Codec, versioner), versioner)
	if err != nil {
		return nil, nil, fmt.Errorf("storage of %s: %w", c.GroupResource, err)
	}
	if uncached[c.GroupResource] {
		o.store.sized(c.GroupResource, seen)
		return raw, raw.Close, nil
	}
	from := newSource(raw, o.store.stalled, newFunc)
	caching, err := cacher.NewCacherFromConfig(cacher.Config{
		Storage: from, Versioner: versioner, GroupResource: c.GroupResource, EventsHistoryWindow: c.EventsHistoryWindow,
		ResourcePrefix: resourcePrefix, KeyFunc: keyFunc, NewFunc: newFunc, NewListFunc: newListFunc,
		GetAttrsFunc: attrs, IndexerFuncs: trigger, Indexers: indexers, Codec: c.Codec, Clock: o.store.clock,
	})
	if err != nil {
		raw.Close()
		return nil, nil, fmt.Errorf("watch cache of %s: %w", c.GroupResource, err)
	}
	delegator := cacher.NewCacheDelegator(caching, raw)
	o.store.fills(c.GroupResource, delegator.ReadinessCheck)
	forget := o.store.sized(c.GroupResource, from)
	var once sync.Once
	destroy := func() {
		once.Do(func() {
			forget()
			delegator.Stop()
			caching.Stop()
			raw.Close()
		})
	}
	if !o.shared {
		return delegator, destroy, nil
	}
	return &sharing{CacheDelegator: delegator, source: from}, destroy, nil
}
