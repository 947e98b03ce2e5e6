package main

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/scale"
)

// scales reads the scale subresource of any kind, custom ones included, for
// disruption budgets.
type scales struct {
	mapper meta.RESTMapper
	client scale.ScalesGetter
}

func newScales(client discovery.DiscoveryInterface) *scales {
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client))
	// Only writing needs to know each kind's own kind of scale.
	return &scales{mapper: mapper, client: scale.New(client.RESTClient(), mapper, dynamic.LegacyAPIPathResolverFunc, nil)}
}

// Scale returns the owner's UID and the replicas that it wants. A kind without
// a scale, or that is not served, is NotFound.
func (s *scales) Scale(ctx context.Context, kind schema.GroupVersionKind,
	namespace, name string) (types.UID, int32, error) {
	m, err := s.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) {
		return "", 0, apierrors.NewNotFound(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, name)
	}
	if err != nil {
		return "", 0, fmt.Errorf("find the resource of %s: %w", kind, err)
	}
	got, err := s.client.Scales(namespace).Get(ctx, m.Resource.GroupResource(), name, metav1.GetOptions{})
	if err != nil {
		return "", 0, err
	}
	return got.UID, got.Spec.Replicas, nil
}
