package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay"
	"github.com/containerd/log"
	"github.com/containerd/platforms"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/agent/image/peer"
)

// Config says where images are kept and where they come from.
type Config struct {
	Dir      string // content, snapshots and metadata
	CertsDir string // registry hosts configuration (hosts.toml); "" = none
	// KeepFree is how many bytes of a file system of that size images leave
	// free, KeepInodes how many inodes; nil = none.
	KeepFree, KeepInodes func(total uint64) uint64
	// Pulls is how many images are pulled at one time; 0 = as many as are asked
	// for. Each holds its manifest and configuration, and some layers' buffers.
	Pulls int
	Log   *slog.Logger
}

const (
	snapshotter = "overlayfs"
	namespace   = "k8s.io" // as containerd's CRI names it
	lockWait    = 2 * time.Second
)

// ErrInUse tells that another process has the store open.
var ErrInUse = errors.New("the image store is in use by another shoal-agent: stop it, or give this one its own --data-dir")

// Store is the node's image store.
type Store struct {
	cfg      Config
	bolt     *bolt.DB
	db       *metadata.DB
	content  content.Store
	transit  *transit // below content
	peers    atomic.Pointer[peer.Peers]
	received atomic.Pointer[func(n int)]
	snaps    snapshots.Snapshotter
	layers   snapshots.Snapshotter // below snaps; has a database of its own
	images   images.Store
	leases   leases.Manager
	platform platforms.MatchComparer

	pulls     keyed
	fetches   keyed               // of blobs, by their names as what is being written
	pulling   *semaphore.Weighted // the images of Config.Pulls
	unpacking chan struct{}       // places of unpackers
	unpackers int                 // layers of one image that are unpacked at one time
	gc        sync.Mutex

	under    sync.Mutex
	underway []*progress // of pulls

	loading sync.Mutex // one reload at a time: the list that was read last is the index

	mu    sync.RWMutex
	index index
	lower map[string][]string // chain ID -> layer directories, top first
}

// Open opens the store in cfg.Dir, making it if it is missing. A store that
// cannot be read is moved aside to Dir.damaged-<time> and an empty one takes
// its place: images come back by import or pull.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	_ = log.SetLevel("error") // the libraries' own notes on requests and file systems
	s, err := open(ctx, cfg)
	if err == nil || errors.Is(err, ErrInUse) || errors.Is(err, fs.ErrPermission) ||
		errors.Is(err, unix.EROFS) || Full(err) {
		return s, err
	}
	aside := fmt.Sprintf("%s.damaged-%d", cfg.Dir, time.Now().UnixNano())
	if mvErr := os.Rename(cfg.Dir, aside); mvErr != nil {
		return nil, fmt.Errorf("open image store: %w; remove %s to start with an empty one", err, cfg.Dir)
	}
	cfg.Log.Error("the image store was damaged and has been moved aside; archives are imported again, other images are pulled again",
		"err", err, "moved", aside)
	return open(ctx, cfg)
}

// sweepMounts has layers mounted below dir while they are unpacked, and removes
// the mounts that an agent left there when it was killed.
func sweepMounts(dir string) error {
	if err := mount.SetTempMountLocation(dir); err != nil {
		return fmt.Errorf("directory for unpacking: %w", err)
	}
	left, err := mount.CleanupTempMounts(0)
	if err := errors.Join(append(left, err)...); err != nil {
		return fmt.Errorf("remove mounts of an earlier run: %w", err)
	}
	return nil
}

func open(ctx context.Context, cfg Config) (s *Store, err error) {
	defer func() { // the database library panics on some damaged pages
		if p := recover(); p != nil {
			err = fmt.Errorf("damaged metadata: %v", p)
		}
		if err != nil && s != nil {
			s.Close()
			s = nil
		}
	}()
	if err := sweepMounts(filepath.Join(cfg.Dir, "mounts")); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dir, 0o711); err != nil {
		return nil, err
	}
	pulls := int64(cfg.Pulls)
	if pulls == 0 {
		pulls = math.MaxInt64
	}
	s = &Store{cfg: cfg, platform: platforms.Default(), pulling: semaphore.NewWeighted(pulls),
		unpacking: make(chan struct{}, unpackers), unpackers: unpackers, lower: map[string][]string{}}
	if err := checkWhole(cfg.Dir); err != nil {
		return nil, err
	}
	if err := checkDatabase(filepath.Join(cfg.Dir, "meta.db")); err != nil {
		return nil, err
	}
	// The lock comes first: everything below it belongs to one process.
	s.bolt, err = bolt.Open(filepath.Join(cfg.Dir, "meta.db"), 0o600,
		&bolt.Options{Timeout: lockWait, NoFreelistSync: true})
	if errors.Is(err, bolt.ErrTimeout) {
		return s, ErrInUse
	}
	if err != nil {
		return s, fmt.Errorf("open metadata: %w", err)
	}
	if err := checkBlobs(filepath.Join(cfg.Dir, "content")); err != nil {
		return s, fmt.Errorf("open content: %w", err)
	}
	blobs, err := local.NewStore(filepath.Join(cfg.Dir, "content"))
	if err != nil {
		return s, fmt.Errorf("open content: %w", err)
	}
	s.transit = newTransit(blobs, filepath.Join(cfg.Dir, "content"))
	layers := filepath.Join(cfg.Dir, "snapshots", "metadata.db")
	if err := checkDatabase(layers); err != nil {
		return s, fmt.Errorf("open snapshots: %w", err)
	}
	if err := checkFreePages(layers); err != nil {
		return s, fmt.Errorf("open snapshots: %w", err)
	}
	s.layers, err = overlay.NewSnapshotter(filepath.Join(cfg.Dir, "snapshots"))
	if err != nil {
		return s, fmt.Errorf("open snapshots: %w", err)
	}
	s.db = metadata.NewDB(s.bolt, s.transit, map[string]snapshots.Snapshotter{snapshotter: s.layers})
	if err := s.db.Init(ctx); err != nil {
		return s, fmt.Errorf("open metadata: %w", err)
	}
	s.content, s.snaps = measured{s.db.ContentStore()}, s.db.Snapshotter(snapshotter)
	s.images, s.leases = metadata.NewImageStore(s.db), metadata.NewLeaseManager(s.db)
	if err := s.endLeases(ctx); err != nil {
		return s, err
	}
	if err := s.forgetDamaged(ctx); err != nil {
		return s, err
	}
	if err := s.reload(ctx); err != nil {
		return s, err
	}
	return s, s.checkLayers(ctx)
}

// endLeases ends those of an agent that was killed: what its pulls left would stay for a day,
// whatever room others need.
func (s *Store) endLeases(ctx context.Context) error {
	ctx = namespaces.WithNamespace(ctx, namespace)
	list, err := s.leases.List(ctx)
	for _, l := range list {
		err = errors.Join(err, s.leases.Delete(ctx, l))
	}
	if err != nil {
		return fmt.Errorf("end leases of an earlier run: %w", err)
	}
	return nil
}

// Full tells whether an error comes from a disk that has no space left.
func Full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// Close lets another process open the store.
func (s *Store) Close() error {
	var errs []error
	if s.layers != nil {
		errs = append(errs, s.layers.Close())
	}
	if s.bolt != nil {
		errs = append(errs, s.bolt.Close())
	}
	return errors.Join(errs...)
}

// leased protects what is written under the returned context from garbage
// collection until done is called.
func (s *Store) leased(ctx context.Context) (context.Context, func(), error) {
	ctx = namespaces.WithNamespace(ctx, namespace)
	l, err := s.leases.Create(ctx, leases.WithRandomID(), leases.WithExpiration(24*time.Hour))
	if err != nil {
		return ctx, nil, fmt.Errorf("create lease: %w", err)
	}
	done := func() { _ = s.leases.Delete(context.WithoutCancel(ctx), l) }
	return leases.WithLease(ctx, l.ID), done, nil
}

// collect removes content and layers that nothing refers to.
func (s *Store) collect(ctx context.Context) error {
	s.gc.Lock()
	defer s.gc.Unlock()
	if _, err := s.db.GarbageCollect(namespaces.WithNamespace(ctx, namespace)); err != nil {
		return fmt.Errorf("collect unused image content: %w", err)
	}
	return nil
}

// Reclaim removes what pulls left on the disk that did not become an image: the next one would
// go on with it.
func (s *Store) Reclaim(ctx context.Context) error { return s.collect(ctx) }

// giveBack removes what a pull or an import wrote before the disk was full:
// others need the space.
func (s *Store) giveBack(ctx context.Context, err error) error {
	if Full(err) {
		return errors.Join(err, s.collect(context.WithoutCancel(ctx)))
	}
	return err
}

// keyed is a lock for each name.
type keyed struct {
	mu sync.Mutex
	m  map[string]*entry
}

type entry struct {
	place chan struct{} // of the one that has the lock
	users int
}

func (k *keyed) lock(key string) (unlock func()) {
	unlock, _ = k.lockUntil(context.Background(), key) // which does not end
	return unlock
}

// lockUntil waits for the lock as long as ctx does not end.
func (k *keyed) lockUntil(ctx context.Context, key string) (unlock func(), err error) {
	k.mu.Lock()
	if k.m == nil {
		k.m = map[string]*entry{}
	}
	e := k.m[key]
	if e == nil {
		e = &entry{place: make(chan struct{}, 1)}
		k.m[key] = e
	}
	e.users++
	k.mu.Unlock()
	leave := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if e.users--; e.users == 0 {
			delete(k.m, key)
		}
	}
	select {
	case e.place <- struct{}{}:
		return func() {
			<-e.place
			leave()
		}, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
