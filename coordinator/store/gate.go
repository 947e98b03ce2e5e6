package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// gate holds requests back until the embedded etcd has a leader, and refuses those
// that cannot succeed: where the majority of the members is out of reach, and writes
// that its disk has no space for.
type gate struct {
	clientv3.KV
	etcd  *embedded
	space *space
}

var errStopped = errors.New("store has stopped")

// electionTime is more than members need to agree on a new leader, so that its
// loss is a delay and no error.
const electionTime = 4 * time.Second

func (g *gate) wait(ctx context.Context) error {
	r := g.etcd.current()
	if !r.ready.Load() {
		if err := r.waitReady(ctx); err != nil {
			return err
		}
	}
	if r.etcd.Server.Lead() != 0 {
		return nil
	}
	return r.waitLeader(ctx)
}

// waitReady returns when etcd has a leader for the first time.
func (r *running) waitReady(ctx context.Context) error {
	select {
	case <-r.etcd.Server.ReadyNotify():
		if err := endFirst(r.etcd.Config().Dir); err != nil {
			return err
		}
		r.ready.Store(true)
		return nil
	case <-r.etcd.Server.StopNotify():
		return errStopped
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(startTimeout):
		return fmt.Errorf("store is not ready after %s%s", startTimeout, r.missing())
	}
}

// waitLeader waits for an election. A member without a leader is on the side of a
// minority, where nothing can be written, and nothing read but from caches.
func (r *running) waitLeader(ctx context.Context) error {
	late := time.After(electionTime)
	for {
		changed := r.etcd.Server.LeaderChangedNotify()
		if r.etcd.Server.Lead() != 0 {
			return nil
		}
		select {
		case <-changed:
		case <-r.etcd.Server.StopNotify():
			return errStopped
		case <-ctx.Done():
			return ctx.Err()
		case <-late:
			return apierrors.NewServiceUnavailable(
				"the coordinators' store has no majority" + r.missing() +
					": nothing is written, and only reads that may be old (resourceVersion=0) and watches are answered")
		}
	}
}

func (g *gate) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	if err := g.wait(ctx); err != nil {
		return nil, err
	}
	return g.KV.Get(ctx, key, opts...)
}

func (g *gate) Txn(ctx context.Context) clientv3.Txn {
	return &careful{Txn: g.KV.Txn(ctx), space: g.space, refused: g.wait(ctx)}
}
