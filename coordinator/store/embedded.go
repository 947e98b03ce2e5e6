package store

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/feature"
)

const (
	snapshotEvery = 2000
	// The database file follows the log this much later. Every write that was
	// acknowledged is in the log, on disk, before; what the file misses after a
	// crash is played back.
	databaseAfter = 500 * time.Millisecond
)

// openEmbedded starts an etcd in this process.
func openEmbedded(cfg Config) (*Store, error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	cfg.quota = cmp.Or(cfg.quota, quotaBytes)
	e := &embedded{cfg: cfg, disk: newSpace(cfg.Dir, cfg.Log), lost: make(chan struct{})}
	e.disk.quota, e.disk.inUse = cfg.quota, e.inUse
	e.disk.reserve()
	setLibraries()
	if err := e.start(); err != nil {
		return nil, err
	}
	s := newStore(e, e.front())
	s.client.KV = &gate{KV: s.client.KV, etcd: e, space: e.disk}
	s.compact()
	ctx, cancel := context.WithCancel(context.Background())
	var keeping sync.WaitGroup
	keeping.Go(func() { s.keepRoom(ctx, cmp.Or(cfg.roomEvery, roomEvery)) })
	compactor := s.stop
	s.stop = func() {
		cancel()
		keeping.Wait()
		compactor()
	}
	return s, nil
}

// setLibraries sets what etcd and the API server's library keep for the whole
// process, where an embedded etcd needs it otherwise: of this package, nothing else
// does. Another store in the process sets the same.
func setLibraries() {
	if wal.SegmentSizeBytes != segmentBytes { // two of them lie on the disk, allocated
		wal.SegmentSizeBytes = segmentBytes
	}
	// An in-process client has no endpoints whose version could be asked for; the
	// embedded server has all features.
	if _, set := feature.DefaultFeatureSupportChecker.(allFeatures); !set {
		feature.DefaultFeatureSupportChecker = allFeatures{feature.DefaultFeatureSupportChecker}
	}
}

func embedConfig(cfg Config, options ...zap.Option) (*embed.Config, error) {
	c := embed.NewConfig()
	c.Dir = cfg.Dir
	c.ListenClientUrls, c.AdvertiseClientUrls = nil, nil // clients are in the process
	c.SnapshotCount = snapshotEvery
	c.QuotaBackendBytes, c.BackendBatchInterval = cfg.quota, databaseAfter
	c.MaxRequestBytes = 3 << 20
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(newLogCore(cfg.Log), options...))
	if cfg.Peers != nil {
		return c, cfg.Peers.join(c)
	}
	joinAlone(c)
	return c, nil
}

type allFeatures struct{ feature.FeatureSupportChecker }

func (allFeatures) Supports(storage.Feature) bool { return true }
