package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	etcdkube "go.etcd.io/etcd/client/v3/kubernetes"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/utils/clock"
)

// Config says where the state is.
type Config struct {
	// Dir is the embedded etcd's directory, mode 0700, made when missing.
	Dir string
	// Servers are URLs of an outside etcd; when set, Dir is not used.
	Servers []string
	// CAFile, CertFile and KeyFile secure the connections to Servers.
	CAFile, CertFile, KeyFile string
	Log                       *slog.Logger
}

// Store is an open connection to the state.
type Store struct {
	etcd      *embed.Etcd
	client    *etcdkube.Client
	compactor etcd3.Compactor
	stop      func() // ends compactor
	// encryption is of the values; nil: they are in the clear.
	encryption *encryption

	mu sync.Mutex
	// filling are the watch caches made before WaitCaches; nil after it.
	filling []func() error
	filled  bool
	// resources is where the values of each lie.
	resources map[schema.GroupResource]string
	// clock is that of all watch caches.
	clock beatClock
}

const (
	startTimeout = 30 * time.Second
	// The one member of an embedded cluster elects itself at once (electSelf) and
	// has nobody to send a heartbeat to: a tick is for nothing, and long.
	tickMs, electMs = 1000, 5000
	// Entries kept in memory for followers that lag; there are none.
	catchUpEntries = 200
	snapshotEvery  = 2000
	// The database file follows the log this much later. Every write that was
	// acknowledged is in the log, on disk, before; what the file misses after a
	// crash is played back.
	databaseAfter = 500 * time.Millisecond
	quotaBytes    = 8 << 30
	// Old versions of keys are kept this long, up to twice that, as upstream.
	historyKept = 5 * time.Minute
)

// Open starts the embedded etcd, or connects to the outside one. The embedded
// one may still be electing itself: the first reads and writes wait for it, and
// the API server is built meanwhile.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if len(cfg.Servers) > 0 {
		return connect(ctx, cfg)
	}
	return openEmbedded(cfg)
}

func openEmbedded(cfg Config) (*Store, error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	disk := newSpace(cfg.Dir, cfg.Log)
	disk.reserve()
	if wal.SegmentSizeBytes != segmentBytes { // two of them lie on the disk, allocated
		wal.SegmentSizeBytes = segmentBytes
	}
	e, err := embed.StartEtcd(embedConfig(cfg))
	if err != nil {
		return nil, fmt.Errorf("open store in %s: %w (if the files are damaged, restore the directory from a backup, or move it away to start an empty cluster)", cfg.Dir, err)
	}
	// An in-process client has no endpoints whose version could be asked for; the
	// embedded server has all features.
	if _, set := feature.DefaultFeatureSupportChecker.(allFeatures); !set {
		feature.DefaultFeatureSupportChecker = allFeatures{feature.DefaultFeatureSupportChecker}
	}
	go electSelf(e.Server)
	s := newStore(e, v3client.New(e.Server))
	s.client.KV = &gate{KV: s.client.KV, etcd: e, space: disk}
	s.compact()
	return s, nil
}

func newStore(e *embed.Etcd, c *clientv3.Client) *Store {
	kc := &etcdkube.Client{Client: c}
	kc.Kubernetes = kc
	kc.KV = etcd3.NewETCDLatencyTracker(kc.KV)
	return &Store{etcd: e, client: kc, clock: newBeatClock()}
}

// compact forgets old versions of keys. The watch caches learn from it which
// lists they must not serve any more, and clients that go on with such a list
// are told that it has expired.
func (s *Store) compact() {
	c := etcd3.NewCompactor(s.client.Client, historyKept, clock.RealClock{}, nil)
	s.compactor, s.stop = c, c.Stop
}

func embedConfig(cfg Config) *embed.Config {
	c := embed.NewConfig()
	c.Name = "shoal"
	c.Dir = cfg.Dir
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:1"} // advertised to no one
	// Nobody connects to it: clients are in the process, and there is no other
	// member. (A socket for peers asks nobody who they are.)
	c.ListenClientUrls, c.AdvertiseClientUrls = nil, nil
	c.ListenPeerUrls = nil
	c.AdvertisePeerUrls = []url.URL{peer}
	c.InitialCluster = c.Name + "=" + peer.String()
	c.TickMs, c.ElectionMs = tickMs, electMs
	c.SnapshotCount, c.SnapshotCatchUpEntries = snapshotEvery, catchUpEntries
	c.QuotaBackendBytes, c.BackendBatchInterval = quotaBytes, databaseAfter
	c.MaxRequestBytes = 3 << 20
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(logCore{log: cfg.Log}))
	return c
}

func connect(ctx context.Context, cfg Config) (*Store, error) {
	c := clientv3.Config{
		Endpoints: cfg.Servers, DialTimeout: 20 * time.Second,
		DialKeepAliveTime: 30 * time.Second, DialKeepAliveTimeout: 10 * time.Second,
		Logger: zap.New(logCore{log: cfg.Log}),
	}
	if cfg.CAFile != "" || cfg.CertFile != "" {
		info := transport.TLSInfo{CertFile: cfg.CertFile, KeyFile: cfg.KeyFile, TrustedCAFile: cfg.CAFile}
		tlsConfig, err := info.ClientConfig()
		if err != nil {
			return nil, fmt.Errorf("connect to etcd: %w", err)
		}
		c.TLS = tlsConfig
	}
	client, err := clientv3.New(c)
	if err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	probe, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if _, err := client.Get(probe, "health"); err != nil {
		_ = client.Close()
		return nil, fmt.Errorf("connect to etcd at %v: %w", cfg.Servers, err)
	}
	s := newStore(nil, client)
	feature.DefaultFeatureSupportChecker.CheckClient(ctx, client, storage.RequestWatchProgress)
	s.compact()
	return s, nil
}

// Err delivers the error that ended the embedded etcd; nil for an outside one.
func (s *Store) Err() <-chan error {
	if s.etcd == nil {
		return nil
	}
	return s.etcd.Err()
}

// WaitCaches returns when every watch cache made so far is filled: a list before
// that is refused, and clients come back only after a second. There is no event
// for it, and it takes some milliseconds.
func (s *Store) WaitCaches(ctx context.Context) error {
	s.mu.Lock()
	checks := s.filling
	s.filling, s.filled = nil, true
	s.mu.Unlock()
	for _, check := range checks {
		for {
			err := check()
			if err == nil {
				break
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case err := <-s.Err():
				return fmt.Errorf("fill watch caches: %w", err)
			case <-time.After(2 * time.Millisecond):
			}
		}
	}
	return nil
}

// fills notes a watch cache for WaitCaches.
func (s *Store) fills(check func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.filled {
		s.filling = append(s.filling, check)
	}
}

// Ready asks for one linearizable read.
func (s *Store) Ready(ctx context.Context) error {
	_, err := s.client.Client.KV.Get(ctx, "health", clientv3.WithKeysOnly())
	return err
}

// Close ends the client and the embedded etcd. Writes acknowledged before are on disk.
func (s *Store) Close() error {
	if s.stop != nil {
		s.stop()
	}
	if s.encryption != nil {
		s.encryption.stop()
	}
	err := s.client.Close()
	if s.etcd != nil {
		s.etcd.Close()
		err = nil // the in-process client's context was ours to cancel
	}
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

type allFeatures struct{ feature.FeatureSupportChecker }

func (allFeatures) Supports(storage.Feature) bool { return true }
