package policystream

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/shoal-project/shoal/agent/policyfeed"
)

// Hub has what agents are told, and who listens. Its zero value is not ready; use New.
type Hub struct {
	log        *slog.Logger
	definition *definition
	policyList networkinglisters.NetworkPolicyLister
	spaceList  corelisters.NamespaceLister
	podList    corelisters.PodLister
	nodeList   corelisters.NodeLister
	synced     []cache.InformerSynced

	ready chan struct{} // closed once all objects are known
	ended chan struct{} // closed when the process stops

	mu         sync.Mutex
	since      time.Time // when it was ready
	policies   map[policyfeed.Key]*policyfeed.Policy
	cluster    map[policyfeed.Key]*policyfeed.ClusterPolicy
	namespaces map[string]*policyfeed.Namespace
	pods       map[policyfeed.Key]*policyfeed.Pod
	// whole are the lines that tell all there is; nil: to be encoded when one asks.
	whole   [][]byte
	streams map[*stream]bool
}

// New takes informers from the factory; call it before they start. ClusterNetworkPolicies
// are read by custom.
func New(f informers.SharedInformerFactory, custom dynamic.Interface, log *slog.Logger) (*Hub, error) {
	policies := f.Networking().V1().NetworkPolicies()
	namespaces, pods := f.Core().V1().Namespaces(), f.Core().V1().Pods()
	h := &Hub{
		log:        log,
		definition: newDefinition(custom, log),
		policyList: policies.Lister(),
		spaceList:  namespaces.Lister(),
		podList:    pods.Lister(),
		nodeList:   f.Core().V1().Nodes().Lister(),
		ready:      make(chan struct{}),
		ended:      make(chan struct{}),
		policies:   map[policyfeed.Key]*policyfeed.Policy{},
		cluster:    map[policyfeed.Key]*policyfeed.ClusterPolicy{},
		namespaces: map[string]*policyfeed.Namespace{},
		pods:       map[policyfeed.Key]*policyfeed.Pod{},
		streams:    map[*stream]bool{},
	}
	for _, follow := range []struct {
		informer cache.SharedIndexInformer
		changed  func(policyfeed.Key)
	}{
		{policies.Informer(), h.policyChanged},
		{namespaces.Informer(), h.namespaceChanged},
		{pods.Informer(), h.podChanged},
	} {
		r, err := follow.informer.AddEventHandler(handler(follow.changed))
		if err != nil {
			return nil, fmt.Errorf("follow objects of network policies: %w", err)
		}
		h.synced = append(h.synced, r.HasSynced)
	}
	if err := h.definition.follow(h.clusterPolicyChanged); err != nil {
		return nil, fmt.Errorf("follow objects of network policies: %w", err)
	}
	return h, nil
}

// handler tells of each object that changed by its name: what it is now is read from
// the informer, which may know more by then.
func handler(changed func(policyfeed.Key)) cache.ResourceEventHandler {
	tell := func(obj any) {
		name, err := cache.DeletionHandlingObjectToName(obj)
		if err == nil {
			changed(policyfeed.Key{Namespace: name.Namespace, Name: name.Name})
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    tell,
		UpdateFunc: func(_, now any) { tell(now) },
		DeleteFunc: tell,
	}
}

// Run lets agents listen once all objects are known, until ctx ends.
func (h *Hub) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	synced, follow := h.synced, h.definition.informer.RunWithContext
	switch h.definition.await(ctx, made, served) {
	case served:
		wg.Go(func() { follow(ctx) })
		synced = append(slices.Clone(synced), h.definition.registration.HasSynced)
	case made: // nobody waits for policies that cannot be
		wg.Go(func() {
			if h.definition.await(ctx, served) == served {
				follow(ctx)
			}
		})
	}
	if cache.WaitForCacheSync(ctx.Done(), synced...) {
		h.mu.Lock()
		h.since = time.Now()
		h.mu.Unlock()
		close(h.ready)
	}
	<-ctx.Done()
	close(h.ended)
}

// settled is how long after its start a hub knows who listens: agents come again within
// half a minute.
const settled = time.Minute

// Idle tells that there are nodes, and that none of them listens.
func (h *Hub) Idle() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.streams) > 0 || h.since.IsZero() || time.Since(h.since) < settled {
		return false
	}
	nodes, err := h.nodeList.List(labels.Everything())
	return h.answered(err) && slices.ContainsFunc(nodes, func(n *corev1.Node) bool {
		return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
	})
}

// count is how many policies there are; h.mu is held.
func (h *Hub) count() int { return len(h.policies) + len(h.cluster) }

// settle tells of a policy that came, changed or went. before is how many there were.
func (h *Hub) settle(before int, u *policyfeed.Update) {
	h.whole = nil
	switch {
	case h.count() == 0:
		h.forgetRest()
		h.tellAll()
	case before == 0:
		h.learnRest()
		h.tellAll()
	default:
		h.tell(u)
	}
}

func (h *Hub) policyChanged(k policyfeed.Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	obj, err := h.policyList.NetworkPolicies(k.Namespace).Get(k.Name)
	if !h.answered(err) {
		return
	}
	before, old := h.count(), h.policies[k]
	if err != nil {
		if old != nil {
			delete(h.policies, k)
			h.settle(before, &policyfeed.Update{GonePolicies: []policyfeed.Key{k}})
		}
		return
	}
	p := policyOf(obj)
	if old != nil && reflect.DeepEqual(old.Spec, p.Spec) {
		return
	}
	h.policies[k] = p
	h.settle(before, &policyfeed.Update{Policies: []policyfeed.Policy{*p}})
}

func (h *Hub) clusterPolicyChanged(k policyfeed.Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before, old, p := h.count(), h.cluster[k], h.definition.policy(k.Name)
	if p == nil {
		if old != nil {
			delete(h.cluster, k)
			h.settle(before, &policyfeed.Update{GoneClusterPolicies: []string{k.Name}})
		}
		return
	}
	if old != nil && reflect.DeepEqual(old.Spec, p.Spec) {
		return
	}
	h.cluster[k] = p
	h.settle(before, &policyfeed.Update{ClusterPolicies: []policyfeed.ClusterPolicy{*p}})
}

// answered is false where a lister failed, which one of an index never does.
func (h *Hub) answered(err error) bool {
	if err == nil || apierrors.IsNotFound(err) {
		return true
	}
	h.log.Error("an object of network policies cannot be read", "err", err)
	return false
}

// learnRest reads what the first policy needs beside itself.
func (h *Hub) learnRest() {
	namespaces, err := h.spaceList.List(labels.Everything())
	if !h.answered(err) {
		return
	}
	for _, n := range namespaces {
		h.namespaces[n.Name] = namespaceOf(n)
	}
	pods, err := h.podList.List(labels.Everything())
	if !h.answered(err) {
		return
	}
	for _, obj := range pods {
		if p := podOf(obj); p != nil {
			h.pods[p.Key] = p
		}
	}
}

func (h *Hub) forgetRest() {
	clear(h.namespaces)
	clear(h.pods)
}

func (h *Hub) namespaceChanged(k policyfeed.Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.count() == 0 {
		return
	}
	obj, err := h.spaceList.Get(k.Name)
	if !h.answered(err) {
		return
	}
	old := h.namespaces[k.Name]
	if err != nil {
		if old != nil {
			delete(h.namespaces, k.Name)
			h.whole = nil
			h.tell(&policyfeed.Update{GoneNamespaces: []string{k.Name}})
		}
		return
	}
	n := namespaceOf(obj)
	if old != nil && maps.Equal(old.Labels, n.Labels) {
		return
	}
	h.namespaces[n.Name] = n
	h.whole = nil
	h.tell(&policyfeed.Update{Namespaces: []policyfeed.Namespace{*n}})
}

func (h *Hub) podChanged(k policyfeed.Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.count() == 0 {
		return
	}
	obj, err := h.podList.Pods(k.Namespace).Get(k.Name)
	if !h.answered(err) {
		return
	}
	var p *policyfeed.Pod
	if err == nil {
		p = podOf(obj)
	}
	old := h.pods[k]
	switch {
	case p == nil && old == nil || p != nil && old != nil && reflect.DeepEqual(p, old):
		return
	case p == nil:
		delete(h.pods, k)
		h.whole = nil
		h.tell(&policyfeed.Update{GonePods: []policyfeed.Key{k}})
	default:
		h.pods[k] = p
		h.whole = nil
		h.tell(&policyfeed.Update{Pods: []policyfeed.Pod{*p}})
	}
}

func policyOf(p *networkingv1.NetworkPolicy) *policyfeed.Policy {
	return &policyfeed.Policy{Key: policyfeed.Key{Namespace: p.Namespace, Name: p.Name}, Spec: p.Spec}
}

func namespaceOf(n *corev1.Namespace) *policyfeed.Namespace {
	return &policyfeed.Namespace{Name: n.Name, Labels: n.Labels}
}

// podOf is nil for a pod that policies do not see.
func podOf(p *corev1.Pod) *policyfeed.Pod {
	var addrs []string
	for _, ip := range p.Status.PodIPs {
		addrs = append(addrs, ip.IP)
	}
	return policyfeed.PodOf(p, addrs)
}

// encode is a line.
func (h *Hub) encode(u *policyfeed.Update) []byte {
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(u); err != nil {
		h.log.Error("an object of network policies cannot be told to nodes", "err", err)
		return nil
	}
	return b.Bytes()
}

// lines tell all there is.
func (h *Hub) lines() [][]byte {
	if h.whole != nil {
		return h.whole
	}
	b := policyfeed.NewBatch(policyfeed.Update{Reset: true})
	for _, p := range sorted(h.policies) {
		u := b.Line(p)
		u.Policies = append(u.Policies, *p)
	}
	for _, p := range sorted(h.cluster) {
		u := b.Line(p)
		u.ClusterPolicies = append(u.ClusterPolicies, *p)
	}
	for _, name := range slices.Sorted(maps.Keys(h.namespaces)) {
		n := h.namespaces[name]
		u := b.Line(n)
		u.Namespaces = append(u.Namespaces, *n)
	}
	for _, p := range sorted(h.pods) {
		u := b.Line(p)
		u.Pods = append(u.Pods, *p)
	}
	for _, u := range b.Lines {
		h.whole = append(h.whole, h.encode(u))
	}
	return h.whole
}

// sorted are a map's values in the order of their names.
func sorted[T any](m map[policyfeed.Key]*T) []*T {
	out := make([]*T, 0, len(m))
	for _, k := range slices.SortedFunc(maps.Keys(m), policyfeed.Key.Compare) {
		out = append(out, m[k])
	}
	return out
}
