package nodettl

import (
	"context"
	"encoding/json"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/shoal-project/shoal/coordinator/controller"
)

type reconciler struct {
	client kubernetes.Interface
	nodes  corelisters.NodeLister
	loop   *controller.Loop

	mu   sync.Mutex
	size size
}

// New builds the controller; its keys are nodes.
func New(env controller.Env) (*controller.Loop, error) {
	nodes := env.Informers.Core().V1().Nodes()
	r := &reconciler{client: env.Client, nodes: nodes.Lister(), loop: controller.New("ttl", 2, env.Log)}
	r.loop.Reconciler = r
	controller.Watch(r.loop, nodes.Informer(), r.changed)
	return r.loop, nil
}

// changed counts nodes. All are looked at when the cluster's size asks for
// another time, else only the one that does not say the right one.
func (r *reconciler) changed(old, node *corev1.Node) {
	r.mu.Lock()
	stepped := false
	switch {
	case old == nil:
		stepped = r.size.add(1)
	case node == nil:
		stepped = r.size.add(-1)
	}
	seconds := r.size.seconds()
	r.mu.Unlock()
	if stepped {
		all, _ := r.nodes.List(labels.Everything())
		for _, n := range all {
			r.loop.Add(n.Name)
		}
	}
	if node != nil && !says(node, seconds) {
		r.loop.Add(node.Name)
	}
}

// Reconcile annotates one node.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	node, err := r.nodes.Get(key)
	if err != nil {
		return 0, controller.IgnoreGone(err)
	}
	r.mu.Lock()
	seconds := r.size.seconds()
	r.mu.Unlock()
	if says(node, seconds) {
		return 0, nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"annotations": map[string]string{corev1.ObjectTTLAnnotationKey: strconv.Itoa(seconds)},
	}})
	if err != nil {
		return 0, err
	}
	_, err = r.client.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	return 0, controller.IgnoreGone(err)
}
