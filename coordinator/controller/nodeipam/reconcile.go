package nodeipam

import (
	"context"
	"encoding/json"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// nodeBits is the size of a node's block: 254 pod addresses.
const nodeBits = 24

type reconciler struct {
	client  kubernetes.Interface
	events  record.EventRecorder
	nodes   corelisters.NodeLister
	cluster netip.Prefix
	// given are the blocks written that the cache may not show yet, by node UID.
	// Only the one worker touches it.
	given map[types.UID]netip.Prefix
}

// New builds the controller for a cluster's IPv4 pod range. It has one worker:
// two would give one block twice.
func New(env controller.Env, cluster netip.Prefix) (*controller.Loop, error) {
	nodes := env.Informers.Core().V1().Nodes()
	loop := controller.New("nodeipam", 1, env.Log)
	loop.Reconciler = &reconciler{
		client: env.Client, events: env.Recorder("cidrAllocator"), nodes: nodes.Lister(),
		cluster: cluster, given: map[types.UID]netip.Prefix{},
	}
	loop.WatchKeys(nodes.Informer())
	return loop, nil
}

// Reconcile writes a node's block once; a block is never changed.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	node, err := r.nodes.Get(key)
	if apierrors.IsNotFound(err) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	if node.Spec.PodCIDR != "" || node.DeletionTimestamp != nil {
		delete(r.given, node.UID)
		return 0, nil
	}
	used, err := r.used()
	if err != nil {
		return 0, err
	}
	block, ok := r.given[node.UID]
	if !ok {
		if block, err = next(r.cluster, nodeBits, used); err != nil {
			r.events.Eventf(node, corev1.EventTypeNormal, "CIDRNotAvailable", "Node %s status is now: CIDRNotAvailable", node.Name)
			return time.Minute, nil
		}
	}
	r.given[node.UID] = block
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID},
		"spec":     map[string]any{"podCIDR": block.String(), "podCIDRs": []string{block.String()}},
	})
	if err != nil {
		return 0, err
	}
	_, err = r.client.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		delete(r.given, node.UID)
		return 0, nil
	}
	return 0, err
}

// used are the blocks of all nodes, those included that were given a moment
// ago; what was given to nodes that are gone is free again.
func (r *reconciler) used() ([]netip.Prefix, error) {
	nodes, err := r.nodes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	var used []netip.Prefix
	alive := make(map[types.UID]bool, len(nodes))
	for _, n := range nodes {
		alive[n.UID] = true
		for _, c := range append([]string{n.Spec.PodCIDR}, n.Spec.PodCIDRs...) {
			if p, err := netip.ParsePrefix(c); err == nil {
				used = append(used, p)
			}
		}
	}
	for uid, p := range r.given {
		if !alive[uid] {
			delete(r.given, uid)
			continue
		}
		used = append(used, p)
	}
	return used, nil
}
