package store

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// frontKV passes requests on to the etcd that runs.
type frontKV struct{ e *embedded }

func (f frontKV) Put(ctx context.Context, key, val string, opts ...clientv3.OpOption) (*clientv3.PutResponse, error) {
	r, release := f.e.acquire()
	defer release()
	return r.client.Put(ctx, key, val, opts...)
}

func (f frontKV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	r, release := f.e.acquire()
	defer release()
	return r.client.Get(ctx, key, opts...)
}

func (f frontKV) Delete(
	ctx context.Context, key string, opts ...clientv3.OpOption,
) (*clientv3.DeleteResponse, error) {
	r, release := f.e.acquire()
	defer release()
	return r.client.Delete(ctx, key, opts...)
}

func (f frontKV) Compact(
	ctx context.Context, rev int64, opts ...clientv3.CompactOption,
) (*clientv3.CompactResponse, error) {
	r, release := f.e.acquire()
	defer release()
	return r.client.Compact(ctx, rev, opts...)
}

func (f frontKV) Do(ctx context.Context, op clientv3.Op) (clientv3.OpResponse, error) {
	r, release := f.e.acquire()
	defer release()
	return r.client.Do(ctx, op)
}

func (f frontKV) Txn(ctx context.Context) clientv3.Txn { return &frontTxn{ctx: ctx, e: f.e} }

// frontTxn collects a transaction, which is made when it is committed.
type frontTxn struct {
	ctx     context.Context
	e       *embedded
	cmps    []clientv3.Cmp
	yes, no []clientv3.Op
}

func (t *frontTxn) If(cmps ...clientv3.Cmp) clientv3.Txn {
	t.cmps = append(t.cmps, cmps...)
	return t
}

func (t *frontTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.yes = append(t.yes, ops...)
	return t
}

func (t *frontTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	t.no = append(t.no, ops...)
	return t
}

func (t *frontTxn) Commit() (*clientv3.TxnResponse, error) {
	r, release := t.e.acquire()
	defer release()
	return r.client.Txn(t.ctx).If(t.cmps...).Then(t.yes...).Else(t.no...).Commit()
}

// frontWatcher watches the etcd that runs. A watch ends with it, and the watch cache
// asks again from the revision that it has reached.
type frontWatcher struct{ e *embedded }

func (f frontWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	return f.e.current().client.Watch(ctx, key, opts...)
}

func (f frontWatcher) RequestProgress(ctx context.Context) error {
	return f.e.current().client.RequestProgress(ctx)
}

func (f frontWatcher) Close() error { return f.e.current().client.Watcher.Close() }

// frontLease keeps leases at the etcd that runs.
type frontLease struct{ e *embedded }

func (f frontLease) Grant(ctx context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error) {
	r, release := f.e.acquire()
	defer release()
	return r.client.Grant(ctx, ttl)
}

func (f frontLease) Revoke(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseRevokeResponse, error) {
	r, release := f.e.acquire()
	defer release()
	return r.client.Revoke(ctx, id)
}

func (f frontLease) TimeToLive(
	ctx context.Context, id clientv3.LeaseID, opts ...clientv3.LeaseOption,
) (*clientv3.LeaseTimeToLiveResponse, error) {
	r, release := f.e.acquire()
	defer release()
	return r.client.TimeToLive(ctx, id, opts...)
}

func (f frontLease) Leases(ctx context.Context) (*clientv3.LeaseLeasesResponse, error) {
	r, release := f.e.acquire()
	defer release()
	return r.client.Leases(ctx)
}

func (f frontLease) KeepAlive(ctx context.Context, id clientv3.LeaseID) (<-chan *clientv3.LeaseKeepAliveResponse, error) {
	return f.e.current().client.KeepAlive(ctx, id)
}

func (f frontLease) KeepAliveOnce(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseKeepAliveResponse, error) {
	r, release := f.e.acquire()
	defer release()
	return r.client.KeepAliveOnce(ctx, id)
}

func (f frontLease) Close() error { return f.e.current().client.Lease.Close() }
