package nodeipam

import (
	"context"
	"encoding/json"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/coordinator/controller"
)

const workers = 8

// Range is one of the cluster's for pods, of which each node gets a part.
type Range struct {
	netip.Prefix
	NodeBits int // prefix length of a part
}

type reconciler struct {
	client kubernetes.Interface
	events record.EventRecorder
	nodes  corelisters.NodeLister

	// told is gossip.RangesAnnotation, "" for none.
	told string

	mu     sync.Mutex
	blocks []*blocks // of each range, the primary family's first; of a family in their order
}

// New builds the controller for a cluster's pod ranges, some of one family or of each. Each
// Node is told all the cluster's ranges, unless they are empty.
func New(env controller.Env, cluster []Range, told gossip.Ranges) (*controller.Loop, error) {
	nodes := env.Informers.Core().V1().Nodes()
	r := &reconciler{client: env.Client, events: env.Recorder("cidrAllocator"), nodes: nodes.Lister(), told: told.Text()}
	for _, p := range cluster {
		r.blocks = append(r.blocks, newBlocks(p.Prefix, p.NodeBits))
	}
	loop := controller.New("nodeipam", workers, env.Log)
	loop.Reconciler = r
	controller.Watch(loop, nodes.Informer(), func(old, node *corev1.Node) {
		if r.note(old, node) {
			loop.Add(node.Name)
		}
		if node == nil {
			loop.AddAfter(old.Name, comeback)
		}
	})
	return loop, nil
}

// note follows what nodes hold, before any worker gives a block away, and tells
// whether the node lacks one.
func (r *reconciler) note(old, node *corev1.Node) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if old != nil && (node == nil || old.UID != node.UID) {
		for _, b := range r.blocks {
			b.leave(old.Name, old.UID, time.Now())
		}
	}
	if node == nil {
		return false
	}
	if node.Spec.PodCIDR == "" {
		return true
	}
	lacks := r.lacks(node)
	if old == nil || old.UID != node.UID || old.Spec.PodCIDR != node.Spec.PodCIDR ||
		!slices.Equal(old.Spec.PodCIDRs, node.Spec.PodCIDRs) {
		for _, b := range r.blocks {
			b.hold(node.Name, node.UID, held(node))
		}
	}
	return lacks
}

// lacks tells whether there is something to write for a node.
func (r *reconciler) lacks(node *corev1.Node) bool {
	return len(r.absent(node)) > 0 || r.told != "" && node.Annotations[gossip.RangesAnnotation] != r.told
}

// absent are the families that a node is to be given a block of, as the ranges where
// there may be one: a node has one of each family. A cluster that gets a second family
// gives each of its nodes a block of it.
func (r *reconciler) absent(node *corev1.Node) (out [][]*blocks) {
	has := held(node)
	for _, b := range r.blocks {
		same := func(p netip.Prefix) bool { return p.Addr().Is4() == b.cluster.Addr().Is4() }
		if slices.ContainsFunc(has, same) {
			continue
		}
		i := slices.IndexFunc(out, func(list []*blocks) bool { return same(list[0].cluster) })
		if i < 0 {
			out = append(out, []*blocks{b})
		} else {
			out[i] = append(out[i], b)
		}
	}
	return out
}

// expire forgets what a node that is gone has held, once it has not come back; it returns
// how long that is.
func (r *reconciler) expire(node string) (left time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range r.blocks {
		left = max(left, b.expire(node, time.Now()))
	}
	return left
}

// freeOf forgets what a node holds if it is still the one with that UID; the lock
// is held.
func (r *reconciler) freeOf(node string, uid types.UID) {
	for _, b := range r.blocks {
		b.freeOf(node, uid)
	}
}

func held(node *corev1.Node) []netip.Prefix {
	var out []netip.Prefix
	for _, c := range append([]string{node.Spec.PodCIDR}, node.Spec.PodCIDRs...) {
		if p, err := netip.ParsePrefix(c); err == nil && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// Reconcile writes a node's blocks, which are never changed.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	node, err := r.nodes.Get(key)
	if apierrors.IsNotFound(err) {
		return r.expire(key), nil
	} else if err != nil {
		return 0, err
	}
	if !r.lacks(node) || node.DeletionTimestamp != nil {
		return 0, nil
	}
	given, err := r.give(node)
	if err != nil {
		r.events.Eventf(node, corev1.EventTypeNormal, "CIDRNotAvailable",
			"Node %s status is now: CIDRNotAvailable", node.Name)
		return time.Minute, nil
	}
	meta := map[string]any{"uid": node.UID}
	if r.told != "" {
		meta["annotations"] = map[string]string{gossip.RangesAnnotation: r.told}
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": meta,
		"spec":     map[string]any{"podCIDR": given[0], "podCIDRs": given},
	})
	if err != nil {
		return 0, err
	}
	_, err = r.client.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		// It is gone; if another node has the name now, its event comes.
		r.mu.Lock()
		defer r.mu.Unlock()
		r.freeOf(key, node.UID)
		return 0, nil
	}
	return 0, err
}

// give takes what is absent for a node, or nothing, and returns all that the node has then.
func (r *reconciler) give(node *corev1.Node) (given []string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range held(node) {
		given = append(given, p.String())
	}
	for _, family := range r.absent(node) {
		block, err := giveOne(family, node)
		if err != nil {
			r.freeOf(node.Name, node.UID)
			for _, b := range r.blocks {
				b.hold(node.Name, node.UID, held(node))
			}
			return nil, err
		}
		given = append(given, block.String())
	}
	return given, nil
}

// giveOne takes a block of the first of a family's ranges that has one, or that the node
// was given one of before.
func giveOne(family []*blocks, node *corev1.Node) (block netip.Prefix, err error) {
	for _, b := range family {
		if b.gave(node.Name, node.UID) {
			return b.give(node.Name, node.UID)
		}
	}
	for _, b := range family {
		if block, err = b.give(node.Name, node.UID); err == nil {
			return block, nil
		}
	}
	return block, err
}
