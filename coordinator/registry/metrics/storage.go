package metrics

import (
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// Kinds lists the kinds of the group.
func Kinds() []kind.Kind {
	shared := &collector{}
	kubelets := func(env *kind.Env, stores kind.Stores) source {
		shared.transport = env.KubeletTransport
		return source{nodes: stores["/nodes"], pods: stores["/pods"], collector: shared}
	}
	return []kind.Kind{
		kind.Of[metricsv1beta1.NodeMetrics]{
			Names: kind.Names{GroupVersion: metricsv1beta1.SchemeGroupVersion, Resource: "nodes", ClusterScoped: true,
				List: &metricsv1beta1.NodeMetricsList{}},
			Rest: func(env *kind.Env, stores kind.Stores) rest.Storage {
				return &nodeMetrics{source: kubelets(env, stores)}
			},
		}.Kind(),
		kind.Of[metricsv1beta1.PodMetrics]{
			Names: kind.Names{GroupVersion: metricsv1beta1.SchemeGroupVersion, Resource: "pods",
				List: &metricsv1beta1.PodMetricsList{}},
			Rest: func(env *kind.Env, stores kind.Stores) rest.Storage {
				return &podMetrics{source: kubelets(env, stores)}
			},
		}.Kind(),
	}
}

// source finds nodes and pods, and what they use.
type source struct {
	nodes, pods *genericregistry.Store
	*collector
}

func (source) Destroy() {}

// GetSingularName is empty, as metrics-server has it: kubectl's words "pod" and
// "node" stay those of the core group.
func (source) GetSingularName() string { return "" }

// cached makes a list come from the watch cache: a moment ago is soon enough.
func cached(o *internalversion.ListOptions) *internalversion.ListOptions {
	out := &internalversion.ListOptions{ResourceVersion: "0"}
	if o != nil {
		out.LabelSelector, out.FieldSelector = o.LabelSelector, o.FieldSelector
	}
	return out
}

// answering tells whether a node is worth asking.
func answering(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// measureNodes returns what is known of the nodes that are ready.
func (s source) measureNodes(ctx context.Context, nodes []*corev1.Node) map[string]pair {
	return s.collect(ctx, slices.DeleteFunc(slices.Clone(nodes), func(n *corev1.Node) bool { return !answering(n) }))
}

// described is the metadata of what is told about an object.
func described(m *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace, Labels: maps.Clone(m.Labels),
		CreationTimestamp: metav1.Now()}
}

func amounts(u usage) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewScaledQuantity(u.nanoCores, resource.Nano),
		corev1.ResourceMemory: *resource.NewQuantity(u.memory, resource.BinarySI),
	}
}

// nodeMetrics serves nodes.
type nodeMetrics struct{ source }

var (
	_ rest.Getter               = &nodeMetrics{}
	_ rest.Lister               = &nodeMetrics{}
	_ rest.Scoper               = &nodeMetrics{}
	_ rest.SingularNameProvider = &nodeMetrics{}
)

func (r *nodeMetrics) New() runtime.Object     { return &metricsv1beta1.NodeMetrics{} }
func (r *nodeMetrics) NewList() runtime.Object { return &metricsv1beta1.NodeMetricsList{} }
func (r *nodeMetrics) NamespaceScoped() bool   { return false }

// List tells of the nodes that answered.
func (r *nodeMetrics) List(ctx context.Context, o *internalversion.ListOptions) (runtime.Object, error) {
	found, err := r.nodes.List(ctx, cached(o))
	if err != nil {
		return nil, err
	}
	list := found.(*corev1.NodeList)
	nodes := make([]*corev1.Node, len(list.Items))
	for i := range list.Items {
		nodes[i] = &list.Items[i]
	}
	return &metricsv1beta1.NodeMetricsList{Items: r.tell(ctx, nodes)}, nil
}

// Get tells of one node.
func (r *nodeMetrics) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	found, err := r.nodes.Get(ctx, name, &metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	told := r.tell(ctx, []*corev1.Node{found.(*corev1.Node)})
	if len(told) == 0 {
		return nil, apierrors.NewNotFound(metricsv1beta1.Resource("nodes"), name)
	}
	return &told[0], nil
}

func (r *nodeMetrics) tell(ctx context.Context, nodes []*corev1.Node) []metricsv1beta1.NodeMetrics {
	known := r.measureNodes(ctx, nodes)
	out := []metricsv1beta1.NodeMetrics{}
	for _, n := range nodes {
		if u, ok := known[n.Name].nodeUsage(); ok {
			out = append(out, metricsv1beta1.NodeMetrics{ObjectMeta: described(&n.ObjectMeta),
				Timestamp: metav1.NewTime(u.time), Window: metav1.Duration{Duration: u.window}, Usage: amounts(u)})
		}
	}
	return out
}

// podMetrics serves pods.
type podMetrics struct{ source }

var (
	_ rest.Getter               = &podMetrics{}
	_ rest.Lister               = &podMetrics{}
	_ rest.Scoper               = &podMetrics{}
	_ rest.SingularNameProvider = &podMetrics{}
)

func (r *podMetrics) New() runtime.Object     { return &metricsv1beta1.PodMetrics{} }
func (r *podMetrics) NewList() runtime.Object { return &metricsv1beta1.PodMetricsList{} }
func (r *podMetrics) NamespaceScoped() bool   { return true }

// List tells of the running pods whose nodes answered.
func (r *podMetrics) List(ctx context.Context, o *internalversion.ListOptions) (runtime.Object, error) {
	found, err := r.pods.List(ctx, cached(o))
	if err != nil {
		return nil, err
	}
	list := found.(*corev1.PodList)
	pods := make([]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		pods[i] = &list.Items[i]
	}
	return &metricsv1beta1.PodMetricsList{Items: r.tell(ctx, pods)}, nil
}

// Get tells of one pod.
func (r *podMetrics) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	found, err := r.pods.Get(ctx, name, &metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	pod := found.(*corev1.Pod)
	told := r.tell(ctx, []*corev1.Pod{pod})
	if len(told) == 0 {
		return nil, apierrors.NewNotFound(metricsv1beta1.Resource("pods"), pod.Namespace+"/"+name)
	}
	return &told[0], nil
}

func (r *podMetrics) tell(ctx context.Context, pods []*corev1.Pod) []metricsv1beta1.PodMetrics {
	pods = slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool {
		return p.Spec.NodeName == "" || p.Status.Phase != corev1.PodRunning
	})
	known := r.measureNodes(ctx, r.nodesOf(ctx, pods))
	out := []metricsv1beta1.PodMetrics{}
	for _, p := range pods {
		used, ok := known[p.Spec.NodeName].podUsage(types.NamespacedName{Namespace: p.Namespace, Name: p.Name})
		if !ok {
			continue
		}
		m := metricsv1beta1.PodMetrics{ObjectMeta: described(&p.ObjectMeta)}
		var begin time.Time
		for _, name := range slices.Sorted(maps.Keys(used)) {
			u := used[name]
			m.Containers = append(m.Containers, metricsv1beta1.ContainerMetrics{Name: name, Usage: amounts(u)})
			if u.time.After(m.Timestamp.Time) {
				m.Timestamp = metav1.NewTime(u.time)
			}
			if from := u.time.Add(-u.window); begin.IsZero() || from.Before(begin) {
				begin = from
			}
		}
		m.Window = metav1.Duration{Duration: m.Timestamp.Sub(begin)}
		out = append(out, m)
	}
	return out
}

// nodesOf returns the nodes that pods run on.
func (r *podMetrics) nodesOf(ctx context.Context, pods []*corev1.Pod) (out []*corev1.Node) {
	ctx = request.WithNamespace(ctx, "")
	seen := map[string]bool{}
	for _, p := range pods {
		if seen[p.Spec.NodeName] {
			continue
		}
		seen[p.Spec.NodeName] = true
		found, err := r.nodes.Get(ctx, p.Spec.NodeName, &metav1.GetOptions{ResourceVersion: "0"})
		if err != nil {
			continue // it has left, and its pods' usage with it
		}
		out = append(out, found.(*corev1.Node))
	}
	return out
}
