package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	etcdkube "go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/etcd3"
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
	// Peers makes the embedded etcd one member of several, or one that may get others;
	// nil: it is the only one, and has no socket.
	Peers *Peers
	Log   *slog.Logger

	// Of tests; 0: the usual. quota is the largest size of the embedded etcd's database, in bytes.
	quota     int64
	roomEvery time.Duration
}

// Store is an open connection to the state.
type Store struct {
	etcd      *embedded // nil: outside
	client    *etcdkube.Client
	compactor etcd3.Compactor
	stop      func() // ends compactor
	// encryption is of the values; nil: they are in the clear.
	encryption *encryption

	mu sync.Mutex
	// filling are the watch caches made before WaitCaches; nil after it.
	filling []filling
	filled  bool
	// resources is where the values of each lie.
	resources map[schema.GroupResource]string
	// sizers tell the average size of the objects of each.
	sizers map[schema.GroupResource]sizer
	// clock is that of all watch caches.
	clock beatClock
	// stalled is of the watches of all watch caches.
	stalled *stalled
}

const (
	// startTimeout bounds how long the state may take to answer at first.
	startTimeout = 30 * time.Second
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

func newStore(e *embedded, c *clientv3.Client) *Store {
	kc := &etcdkube.Client{Client: c}
	kc.Kubernetes = kc
	kc.KV = etcd3.NewETCDLatencyTracker(kc.KV)
	s := &Store{etcd: e, client: kc, clock: newBeatClock()}
	s.stalled = &stalled{write: func(ctx context.Context) error {
		_, err := kc.KV.Put(ctx, stalledKey, "")
		return err
	}}
	s.serveSize()
	return s
}

// compact forgets old versions of keys. The watch caches learn from it which
// lists they must not serve any more, and clients that go on with such a list
// are told that it has expired.
func (s *Store) compact() {
	c := etcd3.NewCompactor(s.client.Client, historyKept, clock.RealClock{}, nil)
	s.compactor, s.stop = c, c.Stop
}

// Lost is closed when the embedded etcd has ended, though nobody closed the store; nil
// for an outside one.
func (s *Store) Lost() <-chan struct{} {
	if s.etcd == nil {
		return nil
	}
	return s.etcd.lost
}

// Err is why the store is lost, or nil while it is not.
func (s *Store) Err() error {
	select {
	case <-s.Lost():
		return s.etcd.why
	default:
		return nil
	}
}

// filling is a watch cache that WaitCaches waits for.
type filling struct {
	resource schema.GroupResource
	check    func() error
}

// kmsPatience is how long a KMS plugin may take to answer before others are served
// without what it encrypted.
const kmsPatience = 2 * time.Second

// WaitCaches returns when every watch cache made so far is filled: a list before
// that is refused, and clients come back only after a second. There is no event
// for it, and it takes some milliseconds. Caches of what a KMS plugin encrypted
// that does not answer are filled when it does.
func (s *Store) WaitCaches(ctx context.Context) error {
	s.mu.Lock()
	caches := s.filling
	s.filling, s.filled = nil, true
	s.mu.Unlock()
	began := time.Now()
	for _, c := range caches {
		for c.check() != nil {
			if time.Since(began) > kmsPatience && s.encryption.silent(c.resource) {
				break
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-s.Lost():
				return fmt.Errorf("fill watch caches: %w", s.Err())
			case <-time.After(2 * time.Millisecond):
			}
		}
	}
	return nil
}

// fills notes a watch cache for WaitCaches.
func (s *Store) fills(resource schema.GroupResource, check func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.filled {
		s.filling = append(s.filling, filling{resource, check})
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
		s.etcd.close()
		err = nil // the in-process client's context was ours to cancel
	}
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
