package provision

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/shoal-project/shoal/agent/api"
	"github.com/shoal-project/shoal/csi"
	"github.com/shoal-project/shoal/csi/locality"
)

// Driver makes volumes on this node.
type Driver interface {
	Create(ctx context.Context, v csi.Create) (csi.Created, error)
	Delete(ctx context.Context, volume string) error
	Grow(ctx context.Context, volume string, bytes int64, use csi.Use) (now int64, onNode bool, err error)
	Room(ctx context.Context, parameters, topology map[string]string) (free, largest int64, err error)
}

// Provisioner makes the volumes of one node.
type Provisioner struct {
	Client kubernetes.Interface
	// Read reads an object of an extension of the API, as JSON.
	Read   func(ctx context.Context, prefix string, path ...string) ([]byte, error)
	Node   string
	Driver Driver
	// NodeUID is that of the Node object, "" while it is not known.
	NodeUID func() types.UID
	// Event tells of a claim or a volume.
	Event func(of *corev1.ObjectReference, kind, reason, message string)
	Log   *slog.Logger
	// Full is called while the driver has no room, each minute: others may have taken what
	// volumes were promised. It may be nil.
	Full func()
	// Records keeps what is unfinished when the agent ends.
	Records Records

	journal                  *journal
	claims, volumes, classes *cached
	// deleted are volumes, by name, that the API is rid of before the watch shows it.
	deleted     sync.Map
	queue       workqueue.TypedRateLimitingInterface[key]
	roomChanged chan struct{}
}

// key is a claim, or a volume where namespace is empty.
type key struct{ namespace, name string }

// workers is how many volumes are made at once: making a file system takes a while.
const workers = 4

// Failures are tried again after a second at first, then ever later.
const (
	firstPause = time.Second
	lastPause  = time.Minute
)

// Run works until ctx ends.
func (p *Provisioner) Run(ctx context.Context) (err error) {
	if p.journal, err = openJournal(p.Records); err != nil {
		return err
	}
	p.queue = workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[key](firstPause, lastPause))
	p.roomChanged = make(chan struct{}, 1)
	work := func(k key) { p.queue.Add(k) }
	p.claims, p.volumes = newCached(work), newCached(work)
	p.claims.whole, p.volumes.whole = p.complete, p.complete
	p.classes = newCached(func(key) { p.changed() })
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() {
		p.claims.follow(ctx, "claims given to this node", &corev1.PersistentVolumeClaim{}, p.claimsHere())
	})
	running.Go(func() { p.volumes.follow(ctx, "volumes of this node", &corev1.PersistentVolume{}, p.volumesHere()) })
	running.Go(func() { p.classes.follow(ctx, "storage classes", &storagev1.StorageClass{}, p.allClasses()) })
	running.Go(func() { p.tellRoom(ctx) })
	for range workers {
		running.Go(func() {
			for p.step(ctx) {
			}
		})
	}
	<-ctx.Done()
	p.queue.ShutDown()
	return nil
}

func (p *Provisioner) claimsHere() *cache.ListWatch {
	all := p.Client.CoreV1().PersistentVolumeClaims("")
	selector := fields.OneTermEqualSelector(locality.SelectedNode, p.Node).String()
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			return all.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return all.Watch(ctx, o)
		},
	}
}

func (p *Provisioner) volumesHere() *cache.ListWatch {
	all := p.Client.CoreV1().PersistentVolumes()
	selector := labels.Set{locality.NodeKey: p.Node}.String()
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = selector
			o.ResourceVersion = "" // the newest: what an earlier agent told of has to be seen
			return all.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = selector
			return all.Watch(ctx, o)
		},
	}
}

// step works on the next change; false at the end.
func (p *Provisioner) step(ctx context.Context) bool {
	k, over := p.queue.Get()
	if over {
		return false
	}
	defer p.queue.Done(k)
	err := p.sync(ctx, k)
	switch {
	case err == nil:
		p.queue.Forget(k)
	case ctx.Err() == nil:
		if p.queue.NumRequeues(k) == 0 {
			p.Log.Warn("a volume of this node is not as its claim wants it; trying again",
				"of", k.namespace+"/"+k.name, "err", err)
		}
		p.queue.AddRateLimited(k)
	}
	return true
}

func (p *Provisioner) sync(ctx context.Context, k key) error {
	if k.namespace == "" {
		pv, ok := p.volumes.get(k).(*corev1.PersistentVolume)
		if !ok {
			p.deleted.Delete(k.name)
			return nil
		}
		if uid, _ := p.deleted.Load(k.name); uid == pv.UID || locality.VolumeNode(pv) != p.Node {
			return nil
		}
		return p.volume(ctx, pv)
	}
	claim, ok := p.claims.get(k).(*corev1.PersistentVolumeClaim)
	if !ok || locality.AskedOf(claim) != p.Node || claim.DeletionTimestamp != nil {
		claim = nil
	}
	if err := p.settle(ctx, k, claim); err != nil || claim == nil {
		return err
	}
	if claim.Spec.VolumeName == "" {
		return p.make(ctx, claim)
	}
	return p.grow(ctx, claim)
}

// cached is what the API has, by key; heard is told of each change.
type cached struct {
	cache.Store
	heard func(key)
	// complete: all that there was has been seen. whole, if set, is called then.
	complete atomic.Bool
	whole    func()
}

func newCached(heard func(key)) *cached {
	return &cached{Store: cache.NewStore(cache.MetaNamespaceKeyFunc), heard: heard}
}

// follow watches until ctx ends.
func (c *cached) follow(ctx context.Context, name string, object runtime.Object, lw *cache.ListWatch) {
	cache.NewReflectorWithOptions(listed{lw}, object, c, cache.ReflectorOptions{
		Name:    name,
		Backoff: api.Retry(),
	}).RunWithContext(ctx)
}

// listed has a reflector begin with a list: what it begins with is little.
type listed struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported implements what client-go asks.
func (listed) IsWatchListSemanticsUnSupported() bool { return true }

func (c *cached) get(k key) any {
	name := k.name
	if k.namespace != "" {
		name = k.namespace + "/" + k.name
	}
	obj, _, _ := c.GetByKey(name) // this store has no errors
	return obj
}

// Add and the next three implement cache.ReflectorStore.
func (c *cached) Add(obj any) error { return c.Update(obj) }

// Update takes an object that changed.
func (c *cached) Update(obj any) error {
	o, ok := obj.(metav1.Object)
	if !ok {
		return errors.New("no object of the API")
	}
	o.SetManagedFields(nil)
	err := c.Store.Update(obj)
	c.heard(key{o.GetNamespace(), o.GetName()})
	return err
}

// Delete takes that an object is gone.
func (c *cached) Delete(obj any) error {
	err := c.Store.Delete(obj)
	if o, ok := obj.(metav1.Object); ok {
		c.heard(key{o.GetNamespace(), o.GetName()})
	}
	return err
}

// Replace takes all that there is.
func (c *cached) Replace(list []any, version string) error {
	err := c.Store.Replace(list, version)
	c.complete.Store(true)
	for _, obj := range list {
		if o, ok := obj.(metav1.Object); ok {
			o.SetManagedFields(nil)
			c.heard(key{o.GetNamespace(), o.GetName()})
		}
	}
	if c.whole != nil {
		c.whole()
	}
	return err
}

func (p *Provisioner) tell(of *corev1.ObjectReference, kind, reason, format string, args ...any) {
	p.Event(of, kind, reason, fmt.Sprintf(format, args...))
}

func claimRef(c *corev1.PersistentVolumeClaim) *corev1.ObjectReference {
	return &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: c.Namespace, Name: c.Name,
		UID: c.UID, ResourceVersion: c.ResourceVersion}
}

func volumeRef(pv *corev1.PersistentVolume) *corev1.ObjectReference {
	return &corev1.ObjectReference{Kind: "PersistentVolume", APIVersion: "v1", Name: pv.Name, UID: pv.UID,
		ResourceVersion: pv.ResourceVersion}
}
