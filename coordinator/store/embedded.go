package store

import (
	"fmt"
	"os"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
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
	quotaBytes    = 8 << 30
)

// openEmbedded starts an etcd in this process.
func openEmbedded(cfg Config) (*Store, error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	disk := newSpace(cfg.Dir, cfg.Log)
	disk.reserve()
	setLibraries()
	e, err := embed.StartEtcd(embedConfig(cfg))
	if err != nil {
		return nil,
			fmt.Errorf(
				"open store in %s: %w (if the files are damaged, restore the directory from a backup, or move it away to start an empty cluster)",
				cfg.Dir, err)
	}
	go electSelf(e.Server)
	s := newStore(e, v3client.New(e.Server))
	s.client.KV = &gate{KV: s.client.KV, etcd: e, space: disk}
	s.compact()
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

func embedConfig(cfg Config) *embed.Config {
	c := embed.NewConfig()
	c.Dir = cfg.Dir
	c.ListenClientUrls, c.AdvertiseClientUrls = nil, nil // clients are in the process
	joinAlone(c)
	c.SnapshotCount = snapshotEvery
	c.QuotaBackendBytes, c.BackendBatchInterval = quotaBytes, databaseAfter
	c.MaxRequestBytes = 3 << 20
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(newLogCore(cfg.Log)))
	return c
}

type allFeatures struct{ feature.FeatureSupportChecker }

func (allFeatures) Supports(storage.Feature) bool { return true }
