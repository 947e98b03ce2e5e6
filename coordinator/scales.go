package main

import (
	"context"
	"encoding/json"
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/restmapper"
)

// scales reads the scale subresource of any kind, custom ones included, for
// disruption budgets.
type scales struct {
	client discovery.DiscoveryInterface
	mapper *restmapper.DeferredDiscoveryRESTMapper
}

func newScales(client discovery.DiscoveryInterface) *scales {
	return &scales{client: client, mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client))}
}

// Scale returns the owner's UID and the replicas that it wants. A kind without
// a scale, or that is not served, is NotFound.
func (s *scales) Scale(ctx context.Context, kind schema.GroupVersionKind, namespace, name string) (types.UID, int32, error) {
	m, err := s.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) {
		return "", 0, apierrors.NewNotFound(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, name)
	}
	if err != nil {
		return "", 0, fmt.Errorf("find the resource of %s: %w", kind, err)
	}
	root := "/apis/" + m.Resource.Group
	if m.Resource.Group == "" {
		root = "/api"
	}
	raw, err := s.client.RESTClient().Get().
		AbsPath(root, m.Resource.Version, "namespaces", namespace, m.Resource.Resource, name, "scale").
		SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err != nil {
		return "", 0, err
	}
	var scale autoscalingv1.Scale
	if err := json.Unmarshal(raw, &scale); err != nil {
		return "", 0, fmt.Errorf("scale of %s %s/%s: %w", kind.Kind, namespace, name, err)
	}
	return scale.UID, scale.Spec.Replicas, nil
}
