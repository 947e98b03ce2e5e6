package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Leased is a set of names below one prefix. A name is there as long as the
// process that holds it keeps its lease alive, which writes nothing.
type Leased struct {
	client *clientv3.Client
	prefix string
	ttl    time.Duration
}

// Leased returns the set of a name. It is beside the API's objects, where no
// encryption is asked for.
func (s *Store) Leased(set string, ttl time.Duration) *Leased {
	return &Leased{client: s.client.Client, prefix: "/shoal/" + set + "/", ttl: ttl}
}

// revokeTimeout bounds how long a name that is given up may keep its holder.
const revokeTimeout = 2 * time.Second

// Hold has a name in the set until ctx ends, then takes it out at once. It
// returns an error when the lease could not be kept: the name goes with it.
func (l *Leased) Hold(ctx context.Context, name string) error {
	lease, err := l.client.Grant(ctx, int64(l.ttl.Seconds()))
	if err != nil {
		return fmt.Errorf("grant lease: %w", err)
	}
	defer l.revoke(ctx, lease.ID)
	if _, err := l.client.Put(ctx, l.prefix+name, "", clientv3.WithLease(lease.ID)); err != nil {
		return fmt.Errorf("write %s: %w", l.prefix+name, err)
	}
	alive, err := l.client.KeepAlive(ctx, lease.ID)
	if err != nil {
		return fmt.Errorf("keep lease alive: %w", err)
	}
	for range alive { // until ctx ends, or nobody answers for the time to live
	}
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("the lease of %s was not kept alive", l.prefix+name)
}

// revoke ends a lease. When that fails it ends by itself.
func (l *Leased) revoke(ctx context.Context, id clientv3.LeaseID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeTimeout)
	defer cancel()
	_, _ = l.client.Revoke(ctx, id)
}

// List returns the names.
func (l *Leased) List(ctx context.Context) ([]string, error) {
	page, err := l.client.Get(ctx, l.prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, fmt.Errorf("read store: %w", err)
	}
	var names []string
	for _, kv := range page.Kvs {
		names = append(names, strings.TrimPrefix(string(kv.Key), l.prefix))
	}
	return names, nil
}

// Follow calls changed once it watches, and at each change, until ctx ends. It
// returns an error when the watch broke: call it again.
func (l *Leased) Follow(ctx context.Context, changed func()) error {
	return follow(ctx, l.client, l.prefix, changed)
}

func follow(ctx context.Context, client *clientv3.Client, prefix string, changed func()) error {
	last := errors.New("it was closed")
	led := clientv3.WithRequireLeader(ctx) // so that a server cut off from the others ends it
	for r := range client.Watch(led, prefix, clientv3.WithPrefix(), clientv3.WithCreatedNotify()) {
		if err := r.Err(); err != nil {
			last = err
		} else {
			changed()
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("watch %s: %w", prefix, last)
}
