package encryption

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// client is the API of a running coordinator.
type client struct {
	discovery *discovery.DiscoveryClient
	metadata  metadata.Interface
}

// NewAPI connects to a coordinator.
func NewAPI(c *rest.Config) (API, error) {
	d, err := discovery.NewDiscoveryClientForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("connect to the API: %w", err)
	}
	m, err := metadata.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("connect to the API: %w", err)
	}
	return &client{discovery: d, metadata: m}, nil
}

func (c *client) State(ctx context.Context) (State, error) {
	var s State
	data, err := c.discovery.RESTClient().Get().AbsPath(StatePath).DoRaw(ctx)
	if err != nil {
		return s, fmt.Errorf("ask the coordinator for its encryption: %w (is it running?)", err)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("ask the coordinator for its encryption: %w", err)
	}
	return s, nil
}

func (c *client) Forget(ctx context.Context) error {
	return c.discovery.RESTClient().Post().AbsPath(StatePath).Do(ctx).Error()
}

// pageSize bounds what one list holds in memory.
const pageSize = 500

// Rewrite patches each object with nothing. The store then writes those again
// that are not under the first key, and only those; a client never sees what is
// in them, and conflicts are the server's to retry. What the API refuses keeps
// the others from nothing: who drops keys looks at what is stored.
func (c *client) Rewrite(ctx context.Context, resource string) (int, error) {
	gvr, err := c.find(resource)
	if err != nil {
		return 0, err
	}
	n, refused := 0, refusals{}
	o := metav1.ListOptions{Limit: pageSize}
	for {
		list, err := c.metadata.Resource(gvr).List(ctx, o)
		if next := nextPage(err); next != "" {
			o.Continue = next
			continue
		}
		if err != nil {
			return n, err
		}
		for i := range list.Items {
			m := &list.Items[i]
			_, err := c.metadata.Resource(gvr).Namespace(m.Namespace).Patch(ctx, m.Name, types.MergePatchType,
				[]byte("{}"), metav1.PatchOptions{})
			switch status := apierrors.APIStatus(nil); {
			case err == nil:
				n++
			case apierrors.IsNotFound(err), apierrors.IsConflict(err): // deleted, or written by others since
			case errors.As(err, &status):
				refused.add(fmt.Errorf("%s/%s: %w", m.Namespace, m.Name, err))
			default:
				return n, err
			}
		}
		if o.Continue = list.Continue; o.Continue == "" {
			return n, refused.err()
		}
	}
}

// nextPage is how to go on with a list that took longer than the store keeps its
// history: from the same place, as things are now.
func nextPage(err error) string {
	if status := apierrors.APIStatus(nil); apierrors.IsResourceExpired(err) && errors.As(err, &status) {
		return status.Status().Continue
	}
	return ""
}

// refusals counts errors and keeps the first.
type refusals struct {
	first error
	n     int
}

func (r *refusals) add(err error) {
	if r.n++; r.first == nil {
		r.first = err
	}
}

func (r *refusals) err() error {
	if r.n < 2 {
		return r.first
	}
	return fmt.Errorf("%d were refused, the first: %w", r.n, r.first)
}

// find is the version of a resource that the API prefers.
func (c *client) find(resource string) (schema.GroupVersionResource, error) {
	groups, err := restmapper.GetAPIGroupResources(c.discovery)
	if err != nil {
		return schema.GroupVersionResource{}, fmt.Errorf("discover %s: %w", resource, err)
	}
	gvr, err := restmapper.NewDiscoveryRESTMapper(groups).ResourceFor(schema.ParseGroupResource(resource).WithVersion(""))
	if err != nil {
		return gvr,
			fmt.Errorf(
				"%w (the API does not serve them: have its CustomResourceDefinition served again, or delete what is stored)",
				err)
	}
	return gvr, nil
}
