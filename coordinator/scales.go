package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/scale"
)

// relearn is how often the kinds that are served are looked up again, when one is not
// known.
const relearn = 10 * time.Second

// scales reads and writes the scale subresource of any kind, custom ones included,
// for disruption budgets and autoscalers.
type scales struct {
	mapper *restmapper.DeferredDiscoveryRESTMapper
	client scale.ScalesGetter
	served discovery.DiscoveryInterface

	mu      sync.Mutex
	learned time.Time
}

func newScales(client discovery.DiscoveryInterface, config *rest.Config) (*scales, error) {
	config = rest.CopyConfig(config)
	config.ContentConfig = rest.ContentConfig{} // JSON: kinds may be custom ones
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client))
	getter, err := scale.NewForConfig(config, mapper, dynamic.LegacyAPIPathResolverFunc,
		scale.NewDiscoveryScaleKindResolver(client))
	if err != nil {
		return nil, fmt.Errorf("make scale client: %w", err)
	}
	return &scales{mapper: mapper, client: getter, served: client, learned: time.Now()}, nil
}

// mapped finds the resources of a kind. What is not known may be served by now.
func (s *scales) mapped(find func() error) error {
	err := find()
	if !meta.IsNoMatchError(err) {
		return err
	}
	s.mu.Lock()
	old := time.Since(s.learned) > relearn
	if old {
		s.learned = time.Now()
	}
	s.mu.Unlock()
	if !old {
		return err
	}
	s.mapper.Reset()
	return find()
}

// Find returns the scale of what an autoscaler names, of the first version and
// resource of its kind that has one.
func (s *scales) Find(ctx context.Context, namespace string,
	target autoscalingv2.CrossVersionObjectReference) (*autoscalingv1.Scale, schema.GroupResource, error) {
	gv, err := schema.ParseGroupVersion(target.APIVersion)
	if err != nil {
		return nil, schema.GroupResource{}, err
	}
	var mappings []*meta.RESTMapping
	err = s.mapped(func() (err error) {
		mappings, err = s.mapper.RESTMappings(gv.WithKind(target.Kind).GroupKind())
		return err
	})
	if err != nil {
		return nil, schema.GroupResource{}, err
	}
	first := errors.New("unrecognized resource")
	for i, m := range mappings {
		resource := m.Resource.GroupResource()
		got, err := s.Get(ctx, namespace, resource, target.Name)
		if err == nil {
			return got, resource, nil
		}
		if i == 0 {
			first = err
		}
	}
	return nil, schema.GroupResource{}, first
}

// Get returns the scale of one object.
func (s *scales) Get(ctx context.Context, namespace string, resource schema.GroupResource,
	name string) (*autoscalingv1.Scale, error) {
	return s.client.Scales(namespace).Get(ctx, resource, name, metav1.GetOptions{})
}

// Update writes the scale of one object.
func (s *scales) Update(ctx context.Context, namespace string, resource schema.GroupResource,
	scale *autoscalingv1.Scale) error {
	_, err := s.client.Scales(namespace).Update(ctx, resource, scale, metav1.UpdateOptions{})
	return err
}

// Scale returns the owner's UID and the replicas that it wants. An owner that is gone is
// NotFound; a kind without a scale, or that is not served, is another error.
func (s *scales) Scale(ctx context.Context, kind schema.GroupVersionKind,
	namespace, name string) (types.UID, int32, error) {
	var m *meta.RESTMapping
	err := s.mapped(func() (err error) {
		m, err = s.mapper.RESTMapping(kind.GroupKind(), kind.Version)
		return err
	})
	if err != nil {
		return "", 0, err
	}
	got, err := s.client.Scales(namespace).Get(ctx, m.Resource.GroupResource(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", 0, s.noScale(m.Resource, err)
	} else if err != nil {
		return "", 0, err
	}
	return got.UID, got.Spec.Replicas, nil
}

// noScale is what it means that a scale was not found.
func (s *scales) noScale(resource schema.GroupVersionResource, gone error) error {
	list, err := s.served.ServerResourcesForGroupVersion(resource.GroupVersion().String())
	if err != nil {
		return err
	}
	scaled := func(r metav1.APIResource) bool { return r.Name == resource.Resource+"/scale" }
	if !slices.ContainsFunc(list.APIResources, scaled) {
		return fmt.Errorf("%s does not implement the scale subresource", resource.GroupResource())
	}
	return gone
}
