package store

import (
	"context"
	"fmt"
	"path"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// scanPage bounds what a scan holds in memory.
const scanPage = 100

// scan calls visit with each raw value below a prefix.
func (s *Store) scan(ctx context.Context, below string, visit func(key string, data []byte) error) error {
	from, end := below, clientv3.GetPrefixRangeEnd(below)
	for {
		page, err := s.client.KV.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(scanPage))
		if err != nil {
			return fmt.Errorf("read store: %w", err)
		}
		for _, kv := range page.Kvs {
			if err := visit(string(kv.Key), kv.Value); err != nil {
				return err
			}
		}
		if !page.More || len(page.Kvs) == 0 {
			return nil
		}
		from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
}

// notes remembers where a resource's values are.
func (s *Store) notes(gr schema.GroupResource, storagePrefix, resourcePrefix string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.resources == nil {
		s.resources = map[schema.GroupResource]string{}
	}
	s.resources[gr] = path.Join("/", storagePrefix, resourcePrefix) + "/"
}

// Count is how many objects of a resource this member of the store has, and how large one is
// on average (0: nobody has seen one), known whether it serves the resource. It asks no other
// member.
func (s *Store) Count(ctx context.Context, gr schema.GroupResource) (n, size int64, known bool, err error) {
	s.mu.Lock()
	below, by := s.resources[gr], s.sizers[gr]
	s.mu.Unlock()
	if below == "" {
		return 0, 0, false, nil
	}
	r, err := s.client.KV.Get(ctx, below, clientv3.WithRange(clientv3.GetPrefixRangeEnd(below)),
		clientv3.WithCountOnly(), clientv3.WithSerializable())
	if err != nil {
		return 0, 0, true, fmt.Errorf("count %s: %w", gr, err)
	}
	if by != nil {
		size = by.averageSize()
	}
	return r.Count, size, true, nil
}

// sized remembers what tells the average size of a resource's objects, until the returned
// function is called. A custom kind has a watch cache for each version; one of them tells.
func (s *Store) sized(gr schema.GroupResource, by sizer) (forget func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sizers == nil {
		s.sizers = map[schema.GroupResource]sizer{}
	}
	s.sizers[gr] = by
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.sizers[gr] == by {
			delete(s.sizers, gr)
		}
	}
}

// prefixes is where the values of the resources are that the store has served.
func (s *Store) prefixes() map[schema.GroupResource]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[schema.GroupResource]string, len(s.resources))
	for gr, p := range s.resources {
		out[gr] = p
	}
	return out
}

// place is where a resource's values are.
type place struct {
	below string
	// sealed: the first of them is encrypted.
	sealed bool
}

// stored finds all resources that have values: those that the store has served,
// and custom ones that nobody has asked for since the start, or whose definition
// is not served any more. It reads one value of each.
func (s *Store) stored(ctx context.Context) (map[schema.GroupResource]place, error) {
	out := map[schema.GroupResource]place{}
	for gr, below := range s.prefixes() {
		out[gr] = place{below: below}
	}
	from, end := prefix+"/", clientv3.GetPrefixRangeEnd(prefix+"/")
	for {
		page, err := s.client.KV.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(1))
		if err != nil {
			return nil, fmt.Errorf("read store: %w", err)
		}
		if len(page.Kvs) == 0 {
			return out, nil
		}
		key := string(page.Kvs[0].Key)
		gr, below := resourceOf(out, key)
		from = key + "\x00"
		if below == "" {
			continue // of no resource
		}
		out[gr] = place{below: below, sealed: keyOf(page.Kvs[0].Value) != clearText}
		from = clientv3.GetPrefixRangeEnd(below)
	}
}

// resourceOf tells whose a key is. What is not known by name is a custom
// resource's, whose group has a dot, or of a kind that another version had.
func resourceOf(known map[schema.GroupResource]place, key string) (schema.GroupResource, string) {
	for gr, at := range known {
		if strings.HasPrefix(key, at.below) {
			return gr, at.below
		}
	}
	parts := strings.SplitN(strings.TrimPrefix(key, prefix+"/"), "/", 3)
	switch {
	case len(parts) == 3 && strings.Contains(parts[0], "."):
		return schema.GroupResource{Group: parts[0], Resource: parts[1]}, path.Join(prefix, parts[0], parts[1]) + "/"
	case len(parts) > 1:
		return schema.GroupResource{Resource: parts[0]}, path.Join(prefix, parts[0]) + "/"
	}
	return schema.GroupResource{}, ""
}
