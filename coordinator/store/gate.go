package store

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
)

// gate holds requests back until the embedded etcd has elected itself, and
// writes that its disk has no space for.
type gate struct {
	clientv3.KV
	etcd  *embed.Etcd
	space *space
	open  atomic.Bool
}

var errStopped = errors.New("store has stopped")

func (g *gate) wait(ctx context.Context) error {
	if g.open.Load() {
		return nil
	}
	select {
	case <-g.etcd.Server.ReadyNotify():
		g.open.Store(true)
		return nil
	case <-g.etcd.Server.StopNotify():
		return errStopped
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(startTimeout):
		return fmt.Errorf("store is not ready after %s", startTimeout)
	}
}

func (g *gate) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	if err := g.wait(ctx); err != nil {
		return nil, err
	}
	return g.KV.Get(ctx, key, opts...)
}

func (g *gate) Txn(ctx context.Context) clientv3.Txn {
	// An error shows when the transaction is committed.
	_ = g.wait(ctx)
	return &careful{Txn: g.KV.Txn(ctx), space: g.space}
}
