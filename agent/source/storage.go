package source

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/shoal-project/shoal/agent/api"
)

// Storage is what the API says of storage drivers and of their volumes. CSIDrivers
// are few, and are watched from the first time on that one is asked for.
type Storage struct {
	Client kubernetes.Interface
	// Changed is called when a CSIDriver changed; it may be nil.
	Changed func()
	// Silent tells that it is in vain to ask the API; nil: it never is.
	Silent func() bool
	Log    *slog.Logger

	ctx  context.Context
	wg   sync.WaitGroup
	once sync.Once

	mu      sync.Mutex
	drivers map[string]*storagev1.CSIDriver // nil: not heard yet
	err     error                           // why not
	heard   chan struct{}                   // closed when drivers or err are set first
}

// Start makes it ready; ctx bounds the watch.
func (s *Storage) Start(ctx context.Context) { s.ctx, s.heard = ctx, make(chan struct{}) }

var errSilent = errors.New("the API has not been heard since the start")

// inVain is why nothing is asked; nil: the API may answer.
func (s *Storage) inVain() error {
	switch {
	case s.Client == nil:
		return errNoAPI
	case s.Silent != nil && s.Silent():
		return errSilent
	}
	return nil
}

// CSIDriver is the object of a driver as last heard, nil for none.
func (s *Storage) CSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
	if s.Client == nil {
		return nil, errNoAPI
	}
	s.once.Do(func() { s.wg.Go(s.follow) })
	if err := s.inVain(); err != nil {
		return nil, err
	}
	select {
	case <-s.heard:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.drivers == nil {
		return nil, s.err
	}
	return s.drivers[name], nil
}

// Attachment is a VolumeAttachment, which nodes may not watch.
func (s *Storage) Attachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error) {
	if err := s.inVain(); err != nil {
		return nil, err
	}
	return s.Client.StorageV1().VolumeAttachments().Get(ctx, name, metav1.GetOptions{})
}

// Claim reads a claim, which nodes may not watch.
func (s *Storage) Claim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	if err := s.inVain(); err != nil {
		return nil, err
	}
	return s.Client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
}

// PatchClaimStatus changes what a claim says.
func (s *Storage) PatchClaimStatus(ctx context.Context, namespace, name string, patch []byte) (
	*corev1.PersistentVolumeClaim, error) {
	if s.Client == nil {
		return nil, errNoAPI
	}
	return s.Client.CoreV1().PersistentVolumeClaims(namespace).Patch(ctx, name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
}

func (s *Storage) follow() {
	all := s.Client.StorageV1().CSIDrivers()
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			l, err := all.List(ctx, o)
			if err != nil {
				s.silent(err)
			}
			return l, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return all.Watch(ctx, o)
		},
	}
	cache.NewReflectorWithOptions(onlyLists{lw}, &storagev1.CSIDriver{}, driverStore{s}, cache.ReflectorOptions{
		Name:    "CSIDrivers",
		Backoff: api.Retry(),
	}).RunWithContext(s.ctx)
}

// silent tells those who wait that the API does not answer.
func (s *Storage) silent(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
	s.tell()
}

// tell has it known that something was heard. The lock is held.
func (s *Storage) tell() {
	select {
	case <-s.heard:
	default:
		close(s.heard)
	}
}

// change replaces what is known by what f makes of a copy.
func (s *Storage) change(f func(drivers map[string]*storagev1.CSIDriver)) error {
	s.mu.Lock()
	drivers := map[string]*storagev1.CSIDriver{}
	for name, d := range s.drivers {
		drivers[name] = d
	}
	f(drivers)
	s.drivers = drivers
	s.tell()
	s.mu.Unlock()
	if s.Changed != nil {
		s.Changed()
	}
	return nil
}

// driverStore takes what a reflector hears; it implements cache.ReflectorStore.
type driverStore struct{ *Storage }

func (d driverStore) Add(obj any) error { return d.Update(obj) }
func (d driverStore) Resync() error     { return nil }

func (d driverStore) Update(obj any) error {
	return d.change(func(drivers map[string]*storagev1.CSIDriver) { put(drivers, obj) })
}

func (d driverStore) Delete(obj any) error {
	return d.change(func(drivers map[string]*storagev1.CSIDriver) {
		if o, ok := obj.(*storagev1.CSIDriver); ok {
			delete(drivers, o.Name)
		}
	})
}

func (d driverStore) Replace(list []any, _ string) error {
	return d.change(func(drivers map[string]*storagev1.CSIDriver) {
		clear(drivers)
		for _, obj := range list {
			put(drivers, obj)
		}
	})
}

func put(drivers map[string]*storagev1.CSIDriver, obj any) {
	if o, ok := obj.(*storagev1.CSIDriver); ok {
		o.ManagedFields = nil
		drivers[o.Name] = o
	}
}
