package store

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
	etcdmetrics "k8s.io/apiserver/pkg/storage/etcd3/metrics"
)

// serveSize has the metrics page tell the size of this store's database
// (apiserver_storage_size_bytes), which is asked for with each scrape.
func (s *Store) serveSize() {
	monitors := []etcdmetrics.Monitor{sizeMonitor{s.etcd, s.client.Client}}
	etcdmetrics.SetStorageMonitorGetter(func() ([]etcdmetrics.Monitor, error) { return monitors, nil })
}

// sizeMonitor tells the size of an etcd's database.
type sizeMonitor struct {
	embedded *embedded // nil: the members that client knows are asked
	client   *clientv3.Client
}

// Monitor is the size that the first member which answers tells of.
func (m sizeMonitor) Monitor(ctx context.Context) (etcdmetrics.StorageMetrics, error) {
	if m.embedded != nil {
		return etcdmetrics.StorageMetrics{Size: m.embedded.current().etcd.Server.Backend().Size()}, nil
	}
	var failed []error
	for _, endpoint := range m.client.Endpoints() {
		status, err := m.client.Status(ctx, endpoint)
		if err == nil {
			return etcdmetrics.StorageMetrics{Size: status.DbSize}, nil
		}
		failed = append(failed, err)
	}
	return etcdmetrics.StorageMetrics{}, fmt.Errorf("read size of the store: %w", errors.Join(failed...))
}

// Close leaves the connection to the store.
func (sizeMonitor) Close() error { return nil }
