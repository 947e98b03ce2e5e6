package garbagecollector

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/record"

	"github.com/shoal-project/shoal/coordinator/controller"
)

const workers = 10

// Collector is the garbage collector; its keys are UIDs.
type Collector struct {
	discovery discovery.DiscoveryInterface
	metadata  metadata.Interface
	informers informers.SharedInformerFactory
	startAll  func()
	events    record.EventRecorder
	loop      *controller.Loop
	log       *slog.Logger
	graph     *graph
	monitors  *monitors
	// ready is set when the graph holds every object; until then an owner that
	// is not in it may yet come.
	ready atomic.Bool
	mu    sync.Mutex
	early map[types.UID]struct{}
}

// Deps are what the collector needs beyond Env.
type Deps struct {
	Discovery discovery.DiscoveryInterface
	Metadata  metadata.Interface
	// StartInformers starts the shared informers that were asked for since it
	// was called last; they outlive the collector.
	StartInformers func()
}

// New builds the garbage collector.
func New(env controller.Env, deps Deps) *Collector {
	c := &Collector{
		discovery: deps.Discovery, metadata: deps.Metadata, informers: env.Informers, startAll: deps.StartInformers,
		events: env.Recorder("garbage-collector-controller"),
		loop:   controller.New("garbagecollector", workers, env.Log), log: env.Log,
		graph: newGraph(), early: map[types.UID]struct{}{},
	}
	c.monitors = &monitors{
		c: c, byGR: map[schema.GroupResource]*monitor{}, kinds: map[schema.GroupKind]*resource{},
		dirty: make(chan struct{}, 1),
	}
	c.loop.Reconciler = c
	return c
}

// Name tells whose loop it is.
func (c *Collector) Name() string { return c.loop.Name() }

// Run fills the graph, then collects until ctx ends.
func (c *Collector) Run(ctx context.Context) error {
	defer c.monitors.close()
	err := c.monitors.refresh(ctx)
	for len(c.monitors.byGR) == 0 && ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
		err = c.monitors.refresh(ctx)
	}
	if ctx.Err() != nil {
		return nil
	}
	c.start()
	var watching sync.WaitGroup
	watching.Go(func() { c.monitors.run(ctx, err) })
	defer watching.Wait()
	return c.loop.Run(ctx)
}

// start hands over what was noticed while the graph filled and is still odd.
func (c *Collector) start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ready.Store(true)
	for uid := range c.early {
		if c.stillOdd(uid) {
			c.loop.Add(string(uid))
		}
	}
	c.early = nil
}

func (c *Collector) stillOdd(uid types.UID) bool {
	n := c.graph.get(uid)
	if n == nil {
		return false
	}
	if n.foreground || n.orphan {
		return true
	}
	for i := range n.owners {
		owner := c.graph.get(n.owners[i].UID)
		if owner == nil || owner.foreground || !owner.is(&n.owners[i], n.namespace) {
			return true
		}
	}
	return false
}

func (c *Collector) look(uids []types.UID) {
	if len(uids) == 0 {
		return
	}
	if c.ready.Load() {
		for _, uid := range uids {
			c.loop.Add(string(uid))
		}
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, uid := range uids {
		if c.early == nil {
			c.loop.Add(string(uid))
			continue
		}
		c.early[uid] = struct{}{}
	}
}

// Reconcile looks at one object.
func (c *Collector) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	n := c.graph.get(types.UID(key))
	if n == nil {
		return 0, nil
	}
	var err error
	if n.orphan {
		err = c.orphan(ctx, n)
	}
	switch {
	case err != nil:
	case n.foreground:
		err = c.foreground(ctx, n)
	case !n.deleting && len(n.owners) > 0:
		err = c.dependent(ctx, n)
	}
	if apierrors.IsNotFound(err) {
		err = nil // its deletion is on the way as an event
	}
	return 0, err
}

func (c *Collector) client(n *node) metadata.ResourceInterface {
	r := c.metadata.Resource(n.res.gvr)
	if n.res.namespaced {
		return r.Namespace(n.namespace)
	}
	return r
}

// live reads an object past the cache; another object by the same name is not
// it.
func (c *Collector) live(ctx context.Context, n *node) (*metav1.PartialObjectMetadata, error) {
	m, err := c.client(n).Get(ctx, n.name, metav1.GetOptions{})
	if err == nil && m.UID != n.uid {
		return nil, apierrors.NewNotFound(n.res.gvr.GroupResource(), n.name)
	}
	return m, err
}

// orphan takes an owner's name off its dependents, then lets the owner go.
func (c *Collector) orphan(ctx context.Context, owner *node) error {
	children := c.graph.children(owner.uid)
	_, err := controller.Each(ctx, 0, len(children), func(ctx context.Context, i int) error {
		m, err := c.live(ctx, children[i])
		if err == nil {
			err = c.patchOwners(ctx, children[i], m, without(m.OwnerReferences, []types.UID{owner.uid}))
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("orphan dependents of %s: %w", owner.name, err)
	}
	return c.dropFinalizer(ctx, owner, metav1.FinalizerOrphanDependents)
}

// foreground lets an owner go when nothing blocks it, and has its dependents
// looked at until then.
func (c *Collector) foreground(ctx context.Context, owner *node) error {
	blocked := false
	for _, d := range c.graph.children(owner.uid) {
		if !blocks(d.ref(owner.uid)) {
			continue
		}
		blocked = true
		if !d.deleting {
			c.loop.Add(string(d.uid))
		}
	}
	if blocked {
		return nil
	}
	return c.dropFinalizer(ctx, owner, metav1.FinalizerDeleteDependents)
}

// dependent keeps, unlinks or deletes one object by its owners' standing.
func (c *Collector) dependent(ctx context.Context, n *node) error {
	m, err := c.live(ctx, n)
	if err != nil {
		return err
	}
	var failed error
	standingOf := func(ref *metav1.OwnerReference) standing {
		s, err := c.standing(ctx, n, ref)
		failed = errors.Join(failed, err)
		return s
	}
	children := c.graph.children(n.uid)
	d := decide(m.OwnerReferences, standingOf, len(children) > 0)
	if failed != nil {
		return failed
	}
	switch d.do {
	case unlink:
		return c.patchOwners(ctx, n, m, without(m.OwnerReferences, d.drop))
	case deleteForeground:
		if slices.ContainsFunc(children, func(ch *node) bool { return ch.foreground }) {
			// A circle of owners would wait for each other for ever.
			if m, err = c.unblock(ctx, n, m); err != nil {
				return err
			}
		}
		return c.delete(ctx, n, m, metav1.DeletePropagationForeground)
	case deleteAsAsked:
		return c.delete(ctx, n, m, policyFor(m.Finalizers))
	}
	return nil
}

// standing finds out about one owner. The graph may say that it exists; that it
// does not, only its seen deletion or the API server may say.
func (c *Collector) standing(ctx context.Context, n *node, ref *metav1.OwnerReference) (standing, error) {
	owner := c.graph.get(ref.UID)
	if owner != nil && owner.is(ref, n.namespace) {
		if owner.foreground {
			return waiting, nil
		}
		return solid, nil
	}
	if owner == nil && c.graph.isGone(ref.UID) {
		return dangling, nil
	}
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return solid, fmt.Errorf("owner of %s %s: %w", n.res.gvr.Resource, n.name, err)
	}
	res := c.monitors.kind(gv.WithKind(ref.Kind).GroupKind())
	if res == nil {
		return solid, fmt.Errorf("owner of %s %s: no resource for %s %s", n.res.gvr.Resource, n.name,
			ref.APIVersion, ref.Kind)
	}
	if res.namespaced && n.namespace == "" || owner != nil && owner.namespace != "" && owner.namespace != n.namespace {
		c.tellInvalid(n, ref)
	}
	if res.namespaced && n.namespace == "" {
		return unresolvable, nil
	}
	m, err := c.live(ctx, &node{uid: ref.UID, res: res, namespace: n.namespace, name: ref.Name})
	switch {
	case apierrors.IsNotFound(err):
		return dangling, nil
	case err != nil:
		return solid, err
	case m.DeletionTimestamp != nil && slices.Contains(m.Finalizers, metav1.FinalizerDeleteDependents):
		return waiting, nil
	}
	return solid, nil
}

// tellInvalid tells of an owner in another namespace (GC-5).
func (c *Collector) tellInvalid(n *node, ref *metav1.OwnerReference) {
	about := &corev1.ObjectReference{
		APIVersion: n.res.gvk.GroupVersion().String(), Kind: n.res.gvk.Kind, Namespace: n.namespace,
		Name: n.name, UID: n.uid,
	}
	c.events.Eventf(about, corev1.EventTypeWarning, "OwnerRefInvalidNamespace",
		"ownerRef [%s/%s, namespace: %s, name: %s, uid: %s] does not exist in namespace %q",
		ref.APIVersion, ref.Kind, n.namespace, ref.Name, ref.UID, n.namespace)
}

func (c *Collector) delete(ctx context.Context, n *node, m *metav1.PartialObjectMetadata,
	policy metav1.DeletionPropagation) error {
	return c.client(n).Delete(ctx, n.name, metav1.DeleteOptions{
		PropagationPolicy: &policy,
		Preconditions:     &metav1.Preconditions{UID: &n.uid, ResourceVersion: &m.ResourceVersion},
	})
}

func (c *Collector) unblock(ctx context.Context, n *node,
	m *metav1.PartialObjectMetadata) (*metav1.PartialObjectMetadata, error) {
	refs := slices.Clone(m.OwnerReferences)
	no := false
	for i := range refs {
		refs[i].BlockOwnerDeletion = &no
	}
	if err := c.patchOwners(ctx, n, m, refs); err != nil {
		return nil, err
	}
	return c.live(ctx, n)
}

func (c *Collector) patchOwners(ctx context.Context, n *node, m *metav1.PartialObjectMetadata,
	refs []metav1.OwnerReference) error {
	if len(refs) == len(m.OwnerReferences) && slices.EqualFunc(refs, m.OwnerReferences, sameRef) {
		return nil
	}
	return c.patch(ctx, n, m, map[string]any{"ownerReferences": refs})
}

func sameRef(a, b metav1.OwnerReference) bool {
	return a.UID == b.UID && blocks(&a) == blocks(&b)
}

func (c *Collector) dropFinalizer(ctx context.Context, n *node, name string) error {
	m, err := c.live(ctx, n)
	if err != nil {
		return err
	}
	if !slices.Contains(m.Finalizers, name) {
		return nil
	}
	rest := slices.DeleteFunc(slices.Clone(m.Finalizers), func(f string) bool { return f == name })
	return c.patch(ctx, n, m, map[string]any{"finalizers": rest})
}

// patch writes metadata if nobody has changed the object since m was read.
func (c *Collector) patch(ctx context.Context, n *node, m *metav1.PartialObjectMetadata, fields map[string]any) error {
	fields["uid"], fields["resourceVersion"] = m.UID, m.ResourceVersion
	data, err := json.Marshal(map[string]any{"metadata": fields})
	if err != nil {
		return err
	}
	_, err = c.client(n).Patch(ctx, n.name, types.MergePatchType, data, metav1.PatchOptions{})
	return err
}
