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

	"github.com/shoal-project/shoal/coordinator/controller"
)

const (
	// nodeBits is the size of a node's block: 254 pod addresses.
	nodeBits = 24
	workers  = 8
)

type reconciler struct {
	client kubernetes.Interface
	events record.EventRecorder
	nodes  corelisters.NodeLister

	mu     sync.Mutex
	blocks *blocks
}

// New builds the controller for a cluster's IPv4 pod range.
func New(env controller.Env, cluster netip.Prefix) (*controller.Loop, error) {
	nodes := env.Informers.Core().V1().Nodes()
	r := &reconciler{client: env.Client, events: env.Recorder("cidrAllocator"), nodes: nodes.Lister(),
		blocks: newBlocks(cluster, nodeBits)}
	loop := controller.New("nodeipam", workers, env.Log)
	loop.Reconciler = r
	controller.Watch(loop, nodes.Informer(), func(old, node *corev1.Node) {
		if r.note(old, node) {
			loop.Add(node.Name)
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
		r.blocks.freeOf(old.Name, old.UID)
	}
	if node == nil {
		return false
	}
	if node.Spec.PodCIDR == "" {
		return true
	}
	if old == nil || old.UID != node.UID || old.Spec.PodCIDR != node.Spec.PodCIDR ||
		!slices.Equal(old.Spec.PodCIDRs, node.Spec.PodCIDRs) {
		r.blocks.hold(node.Name, node.UID, held(node))
	}
	return false
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

// Reconcile writes a node's block once; a block is never changed.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	node, err := r.nodes.Get(key)
	if apierrors.IsNotFound(err) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.blocks.free(key)
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	if node.Spec.PodCIDR != "" || node.DeletionTimestamp != nil {
		return 0, nil
	}
	block, err := r.give(node)
	if err != nil {
		r.events.Eventf(node, corev1.EventTypeNormal, "CIDRNotAvailable",
			"Node %s status is now: CIDRNotAvailable", node.Name)
		return time.Minute, nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID},
		"spec":     map[string]any{"podCIDR": block.String(), "podCIDRs": []string{block.String()}},
	})
	if err != nil {
		return 0, err
	}
	_, err = r.client.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		// It is gone; if another node has the name now, its event comes.
		r.mu.Lock()
		defer r.mu.Unlock()
		r.blocks.freeOf(key, node.UID)
		return 0, nil
	}
	return 0, err
}

func (r *reconciler) give(node *corev1.Node) (netip.Prefix, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.blocks.give(node.Name, node.UID)
}
