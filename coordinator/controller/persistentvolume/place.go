package persistentvolume

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	storagehelper "k8s.io/component-helpers/storage/volume"

	"github.com/shoal-project/shoal/coordinator/controller"
	"github.com/shoal-project/shoal/csi/locality"
)

// A node that gave a claim back is not asked again for a while, ever longer.
const (
	firstRest = 2 * time.Second
	lastRest  = 2 * time.Minute
)

// Indexes: the claims that a node is to make volumes for, and what it tells of its
// room for a class.
const (
	byMaker = "maker"
	byRoom  = "room"
)

// places gives claims for the driver that ships with Shoal to nodes, where no
// scheduler does: those of classes that bind at once.
type places struct {
	nodes   corelisters.NodeLister
	drivers storagelisters.CSINodeLister
	rooms   cache.Indexer
	claims  cache.Indexer
	// extension reads an object of an extension of the API, as JSON.
	extension func(ctx context.Context, path string) ([]byte, error)
	loop      *controller.Loop
	given     map[string]*given // by claim; for who holds reconciler.choosing

	mu      sync.Mutex
	wanting map[string]bool // claims without a node, looked at when nodes change
}

// given is what became of a claim so far.
type given struct {
	uid types.UID
	// node has it, as written with version; "" for none.
	node, version string
	refused       map[string]*refusal // by node
	// asked is how often its snapshot was not ready.
	asked int
	// told is the last event's message: what nodes and their room do changes it seldom.
	told string
}

type refusal struct {
	times int
	until time.Time
}

func newPlaces(env controller.Env, loop *controller.Loop) (*places, error) {
	core, storage := env.Informers.Core().V1(), env.Informers.Storage().V1()
	p := &places{
		nodes: core.Nodes().Lister(), drivers: storage.CSINodes().Lister(),
		rooms:  storage.CSIStorageCapacities().Informer().GetIndexer(),
		claims: core.PersistentVolumeClaims().Informer().GetIndexer(), given: map[string]*given{}, loop: loop,
		wanting: map[string]bool{}, extension: func(ctx context.Context, path string) ([]byte, error) {
			get := env.Client.Discovery().RESTClient().Get()
			return get.AbsPath(path).SetHeader("Accept", "application/json").DoRaw(ctx)
		},
	}
	if err := controller.Index(core.PersistentVolumeClaims().Informer(), byMaker, makerOf); err != nil {
		return nil, err
	}
	if err := controller.Index(storage.CSIStorageCapacities().Informer(), byRoom, roomOf); err != nil {
		return nil, err
	}
	controller.Watch(loop, core.Nodes().Informer(), p.nodeChanged)
	controller.Watch(loop, storage.CSINodes().Informer(), func(_, n *storagev1.CSINode) {
		if n != nil && hasDriver(n) {
			p.wake("")
		}
	})
	controller.Watch(loop, storage.CSIStorageCapacities().Informer(), func(_, c *storagev1.CSIStorageCapacity) {
		if c != nil && locality.CapacityNode(c) != "" {
			p.wake("")
		}
	})
	return p, nil
}

// makerOf indexes claims without a volume by the node that is to make it.
func makerOf(obj any) ([]string, error) {
	c, ok := obj.(*corev1.PersistentVolumeClaim)
	if !ok || c.Spec.VolumeName != "" || locality.AskedOf(c) == "" {
		return nil, nil
	}
	return []string{locality.AskedOf(c)}, nil
}

func roomOf(obj any) ([]string, error) {
	c, ok := obj.(*storagev1.CSIStorageCapacity)
	if !ok || c.Namespace != metav1.NamespaceSystem || locality.CapacityNode(c) == "" {
		return nil, nil
	}
	return []string{c.StorageClassName + "/" + locality.CapacityNode(c)}, nil
}

// nodeChanged: a node that can make volumes now, or that is gone.
func (p *places) nodeChanged(old, n *corev1.Node) {
	switch {
	case n == nil:
		list, err := p.claims.ByIndex(byMaker, old.Name)
		if err != nil {
			return // the index is there
		}
		for _, obj := range list {
			if c, ok := obj.(*corev1.PersistentVolumeClaim); ok {
				p.loop.Add(claimKey + controller.Key(c.Namespace, c.Name))
			}
		}
	case old == nil || old.Spec.Unschedulable != n.Spec.Unschedulable ||
		controller.NodeReadyStatus(old) != controller.NodeReadyStatus(n) ||
		!equality.Semantic.DeepEqual(old.Labels, n.Labels):
		p.wake("")
	}
}

// sourceReady: a claim of the namespace has a volume, which others may wait to clone.
func (p *places) sourceReady(namespace string) { p.wake(namespace + "/") }

// wake has the claims looked at that have no node.
func (p *places) wake(prefix string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key := range p.wanting {
		if strings.HasPrefix(key, prefix) {
			p.loop.Add(claimKey + key)
		}
	}
}

func (p *places) want(key string, wanting bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if wanting {
		p.wanting[key] = true
	} else {
		delete(p.wanting, key)
	}
}

// forget drops what is known of a claim that needs no node.
func (p *places) forget(key string) {
	delete(p.given, key)
	p.want(key, false)
}

// of is what is known of a claim.
func (p *places) of(c *corev1.PersistentVolumeClaim) *given {
	key := controller.Key(c.Namespace, c.Name)
	g := p.given[key]
	if g == nil || g.uid != c.UID {
		g = &given{uid: c.UID, refused: map[string]*refusal{}}
		p.given[key] = g
	}
	return g
}

// place gives a claim to a node, or takes it away from one that is gone.
func (r *reconciler) place(ctx context.Context, c *corev1.PersistentVolumeClaim, step claimStep,
	v *view) (time.Duration, error) {
	g := r.places.of(c)
	if before(c.ResourceVersion, g.version) {
		return 0, nil // what was written is still to come
	}
	if node := c.Annotations[storagehelper.AnnSelectedNode]; node != "" {
		r.places.want(controller.Key(c.Namespace, c.Name), false)
		gone, err := r.nodeGone(ctx, node)
		if err != nil {
			return 0, err
		}
		return 0, r.write(ctx, c, g, step, func(c *corev1.PersistentVolumeClaim) {
			if gone {
				delete(c.Annotations, storagehelper.AnnSelectedNode)
			}
		})
	}
	g.takenBack(time.Now())
	w := wish{class: step.Place, size: c.Spec.Resources.Requests[corev1.ResourceStorage]}
	if source := locality.SourceClaim(c); source != "" {
		node, failed := r.sourceNode(c.Namespace, source, v)
		if failed != nil {
			step.Event = failed
			return r.unplaced(ctx, c, g, step, 0)
		}
		w.source = node
	} else if snapshot := locality.SourceSnapshot(c); snapshot != "" {
		node, err := locality.SnapshotNode(func(path string) ([]byte, error) {
			return r.places.extension(ctx, path)
		}, c.Namespace, snapshot)
		if err != nil {
			// Nobody tells when it is: snapshots are an extension of the API.
			step.Event = warning("ProvisioningFailed", "failed to provision volume with StorageClass %q: %v",
				w.class.Name, err)
			g.asked++
			return r.unplaced(ctx, c, g, step, min(firstRest<<min(g.asked-1, 10), lastRest))
		}
		w.source = node
	} else if c.Spec.DataSource != nil || c.Spec.DataSourceRef != nil {
		return r.unplaced(ctx, c, g, step, 0)
	}
	all, err := r.places.candidates(c, g, time.Now())
	if err != nil {
		return 0, err
	}
	node, why := chooseNode(w, all)
	if node == "" {
		if why != "" {
			step.Event = warning("ProvisioningFailed", "failed to provision volume with StorageClass %q: %s",
				w.class.Name, why)
		}
		return r.unplaced(ctx, c, g, step, g.rest(time.Now()))
	}
	r.places.want(controller.Key(c.Namespace, c.Name), false)
	return 0, r.write(ctx, c, g, step, func(c *corev1.PersistentVolumeClaim) {
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, storagehelper.AnnSelectedNode, node)
	})
}

// unplaced leaves a claim without a node until something changes, or for a time.
func (r *reconciler) unplaced(ctx context.Context, c *corev1.PersistentVolumeClaim, g *given, step claimStep,
	again time.Duration) (time.Duration, error) {
	r.places.want(controller.Key(c.Namespace, c.Name), true)
	return again, r.write(ctx, c, g, step, func(*corev1.PersistentVolumeClaim) {})
}

// write has the driver asked, and changes the claim besides.
func (r *reconciler) write(ctx context.Context, c *corev1.PersistentVolumeClaim, g *given, step claimStep,
	change func(*corev1.PersistentVolumeClaim)) error {
	written, err := r.updateClaim(ctx, c, func(c *corev1.PersistentVolumeClaim) {
		ask(c, step.Provisioner)
		change(c)
	})
	if err != nil {
		return err
	}
	g.node, g.version = written.Annotations[storagehelper.AnnSelectedNode], written.ResourceVersion
	if step.Event.message != g.told {
		r.events.Event(c, step.Event.kind, step.Event.reason, step.Event.message)
		g.told = step.Event.message
	}
	return nil
}

// nodeGone asks the API too: a node that has just joined may not be in the cache yet.
func (r *reconciler) nodeGone(ctx context.Context, name string) (bool, error) {
	if _, err := r.places.nodes.Get(name); err == nil {
		return false, nil
	}
	_, err := r.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	return apierrors.IsNotFound(err), controller.IgnoreGone(err)
}

// sourceNode is the node of the volume that is to be cloned, or why it has none.
func (r *reconciler) sourceNode(namespace, name string, v *view) (string, *event) {
	fail := func(why string) (string, *event) {
		return "", warning("ProvisioningFailed", "failed to provision volume: claim %q, whose volume is to be cloned, %s",
			name, why)
	}
	source, err := r.claims.PersistentVolumeClaims(namespace).Get(name)
	if err != nil {
		return fail("is not there")
	}
	if source.Status.Phase != corev1.ClaimBound {
		return fail("is not bound yet")
	}
	pv := v.volume(source.Spec.VolumeName)
	if pv == nil || locality.VolumeNode(pv) == "" {
		return fail(fmt.Sprintf("has no volume of driver %s", locality.Driver))
	}
	return locality.VolumeNode(pv), nil
}

// candidates are all nodes, as a claim sees them.
func (p *places) candidates(c *corev1.PersistentVolumeClaim, g *given, now time.Time) ([]candidate, error) {
	nodes, err := p.nodes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	all := make([]candidate, 0, len(nodes))
	for _, n := range nodes {
		x := candidate{node: n, promised: p.promised(n.Name)}
		if d, err := p.drivers.Get(n.Name); err == nil {
			x.driver = hasDriver(d)
		}
		list, err := p.rooms.ByIndex(byRoom, storagehelper.GetPersistentVolumeClaimClass(c)+"/"+n.Name)
		if err != nil {
			return nil, err
		}
		if len(list) > 0 {
			x.room, _ = list[0].(*storagev1.CSIStorageCapacity)
		}
		if was := g.refused[n.Name]; was != nil {
			x.refused = now.Before(was.until)
		}
		all = append(all, x)
	}
	return all, nil
}

// promised is the size of the volumes that a node is still to make.
func (p *places) promised(node string) (bytes int64) {
	list, err := p.claims.ByIndex(byMaker, node)
	if err != nil {
		return 0 // the index is there
	}
	for _, obj := range list {
		if c, ok := obj.(*corev1.PersistentVolumeClaim); ok {
			bytes += c.Spec.Resources.Requests.Storage().Value()
		}
	}
	return bytes
}

// takenBack: the claim has no node; the one that it was given to did not take it.
func (g *given) takenBack(now time.Time) {
	if g.node == "" {
		return
	}
	was := g.refused[g.node]
	if was == nil {
		was = &refusal{}
		g.refused[g.node] = was
	}
	was.until = now.Add(min(firstRest<<min(was.times, 10), lastRest))
	was.times++
	g.node = ""
}

// rest is how long until the first node that gave the claim back may have it again, 0
// where none did.
func (g *given) rest(now time.Time) (rest time.Duration) {
	for _, was := range g.refused {
		if d := was.until.Sub(now); d > 0 {
			rest = controller.Sooner(rest, d)
		}
	}
	return rest
}

// before tells whether a version is older than another.
func before(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order < 0 // not where nothing was written
}
