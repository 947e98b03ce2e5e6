package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/tests/bench/measure"
)

// Load of the step schedule. Shapes and templates are those of upstream's
// scheduler_perf: nodes of 4 CPUs in zones, pods of 100m and 500Mi.
const (
	zones       = 3
	writers     = 32
	measurePods = 1000
	// victims fill the nodes before preemption; each takes this many of them.
	preemptors = 200
	zoneKey    = "topology.kubernetes.io/zone"
	// leaseEvery keeps simulated nodes alive at a third of a real one's rate.
	leaseEvery = 30 * time.Second
	fleetNS    = "fleet"
)

// shape is a kind of pods to be scheduled.
type shape struct {
	name string
	pods func(nodes int) int
	spec func(*corev1.Pod)
	// fill is how many pods of low priority fill each node before.
	fill func(nodes int) int
}

func some(n int) func(int) int { return func(int) int { return n } }

var shapes = []shape{
	{name: "basic", pods: some(measurePods), spec: func(*corev1.Pod) {}},
	{name: "affinity", pods: some(measurePods), spec: func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{
			PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term(zoneKey)}}
	}},
	{name: "anti-affinity", pods: func(nodes int) int { return min(measurePods, nodes/2) }, spec: func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{
			PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: term(corev1.LabelHostname)}}
	}},
	{name: "spread", pods: some(measurePods), spec: func(p *corev1.Pod) {
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 5, TopologyKey: zoneKey, WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "load"}},
		}}
	}},
	{name: "preemption", pods: some(preemptors), spec: func(p *corev1.Pod) {
		p.Spec.PriorityClassName = "high"
		p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("3")
	}, fill: func(nodes int) int { return max(1, 4000/nodes) }},
}

func term(key string) []corev1.PodAffinityTerm {
	return []corev1.PodAffinityTerm{
		{TopologyKey: key, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "load"}}}}
}

// schedule measures scheduling rates, a cluster for each number of nodes.
func (b *bench) schedule(ctx context.Context, _ *cluster) error {
	var errs []error
	for s := range strings.SplitSeq(b.options.sizes, ",") {
		nodes, err := strconv.Atoi(s)
		if err != nil {
			return fmt.Errorf("-nodes: %w", err)
		}
		errs = append(errs,
			b.with(ctx, plane, func(ctx context.Context, c *cluster) error { return b.scheduleOn(ctx, c, nodes) }))
	}
	return errors.Join(errs...)
}

func (b *bench) scheduleOn(ctx context.Context, c *cluster, nodes int) error {
	f := &fleet{cluster: c, size: nodes}
	keeping, stop := context.WithCancel(ctx)
	kept := make(chan error, 1)
	go func() { kept <- f.keep(keeping) }()
	err := b.shapes(ctx, f)
	stop()
	return errors.Join(err, <-kept)
}

func (b *bench) shapes(ctx context.Context, f *fleet) error {
	start := time.Now()
	before, err := f.cluster.used()
	if err != nil {
		return err
	}
	if err := f.make(ctx); err != nil {
		return fmt.Errorf("make %d nodes: %w", f.size, err)
	}
	took := time.Since(start)
	after, err := f.cluster.used()
	if err != nil {
		return err
	}
	what := fmt.Sprintf("%d nodes made, until pods can go to all", f.size)
	b.record.cost(what, "s", took.Seconds())
	b.record.cost(what+": CPU", "ms a node", measure.Ms(after-before)/float64(f.size))
	for _, s := range shapes {
		if !slices.Contains(strings.Split(b.options.shapes, ","), s.name) {
			continue
		}
		if err := b.shape(ctx, f, s); err != nil {
			return fmt.Errorf("%s on %d nodes: %w", s.name, f.size, err)
		}
	}
	return nil
}

// shape measures from the first pod's creation to the last binding.
func (b *bench) shape(ctx context.Context, f *fleet, s shape) error {
	if s.fill != nil {
		if err := f.fill(ctx, s.fill(f.size)); err != nil {
			return err
		}
	}
	n := s.pods(f.size)
	before, err := f.cluster.used()
	if err != nil {
		return err
	}
	took, err := f.bring(ctx, n, s, func(p *corev1.Pod) bool { return p.Spec.NodeName != "" })
	if err != nil {
		return err
	}
	after, err := f.cluster.used()
	if err != nil {
		return err
	}
	what := fmt.Sprintf("scheduling, %s, %d nodes", s.name, f.size)
	b.record.rate(what, "pods/s", float64(n)/took.Seconds())
	b.record.cost(what+": CPU", "ms a pod", measure.Ms(after-before)/float64(n))
	return f.clear(ctx)
}

// fleet is simulated nodes: objects without agents.
type fleet struct {
	cluster *cluster
	size    int
}

func fleetNode(i int) string { return fmt.Sprintf("fleet-%d", i) }

// make creates nodes, priorities and a namespace, and waits until pods can go
// to every node.
func (f *fleet) make(ctx context.Context) error {
	client := f.cluster.client
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fleetNS}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return err
	}
	for name, value := range map[string]int32{"low": 1, "high": 1000} {
		class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}
		if _, err := client.SchedulingV1().PriorityClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	if _, err := parallel(ctx, f.size, writers, func(i int) error {
		_, err := client.CoreV1().Nodes().Create(ctx, newNode(i), metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	return poll(ctx, 5*time.Minute, func() error { return f.usable(ctx) })
}

func newNode(i int) *corev1.Node {
	now := metav1.Now()
	amounts := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("32Gi"),
		corev1.ResourcePods: resource.MustParse("110"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: fleetNode(i),
			Labels: map[string]string{corev1.LabelHostname: fleetNode(i), zoneKey: fmt.Sprintf("zone-%d", i%zones)}},
		Status: corev1.NodeStatus{
			Capacity: amounts, Allocatable: amounts,
			Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: now,
					LastTransitionTime: now}},
		},
	}
}

// usable returns nil when no node has a taint that keeps pods away, and pods
// can be created.
func (f *fleet) usable(ctx context.Context) error {
	list, err := f.cluster.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	tainted := 0
	for i := range list.Items {
		if len(list.Items[i].Spec.Taints) > 0 {
			tainted++
		}
	}
	if tainted > 0 || len(list.Items) != f.size {
		return fmt.Errorf("%d of %d nodes have taints", tainted, len(list.Items))
	}
	_, err = f.cluster.client.CoreV1().ServiceAccounts(fleetNS).Get(ctx, "default", metav1.GetOptions{})
	return err
}

// keep renews the nodes' Leases, each in its turn, until ctx ends. Turns begin
// by the clock: on a busy machine they overtake each other rather than be late.
func (f *fleet) keep(ctx context.Context) error {
	const parts = 60
	tick := time.NewTicker(leaseEvery / parts)
	defer tick.Stop()
	var renewing sync.WaitGroup
	defer renewing.Wait()
	failed := make(chan error, 1)
	for part := 0; ; part = (part + 1) % parts {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return fmt.Errorf("renew Leases: %w", err)
		case <-tick.C:
		}
		renewing.Go(func() {
			if err := f.renew(ctx, f.size*part/parts, f.size*(part+1)/parts); err != nil && ctx.Err() == nil {
				select {
				case failed <- err:
				default: // one is enough
				}
			}
		})
	}
}

// renew renews or makes the Leases of some nodes.
func (f *fleet) renew(ctx context.Context, from, to int) error {
	leases := f.cluster.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	_, err := parallel(ctx, to-from, 4, func(i int) error {
		name, now := fleetNode(from+i), metav1.NowMicro()
		_, err := leases.Patch(ctx, name, types.MergePatchType,
			fmt.Appendf(nil, `{"spec":{"renewTime":%q}}`, now.UTC().Format(metav1.RFC3339Micro)), metav1.PatchOptions{})
		if !isNotFound(err) {
			return err
		}
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: corev1.NamespaceNodeLease},
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity: &name, LeaseDurationSeconds: ptr.To[int32](40), RenewTime: &now,
			}}
		_, err = leases.Create(ctx, lease, metav1.CreateOptions{})
		return err
	})
	return err
}

// fill gives every node pods of low priority that together take 3.6 CPUs.
func (f *fleet) fill(ctx context.Context, perNode int) error {
	_, err := parallel(ctx, f.size*perNode, writers, func(i int) error {
		p := f.pod(fmt.Sprintf("low-%d", i))
		p.Labels, p.Spec.PriorityClassName, p.Spec.NodeName = nil, "low", fleetNode(i/perNode)
		p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = *resource.NewMilliQuantity(int64(3600/perNode),
			resource.DecimalSI)
		_, err := f.cluster.client.CoreV1().Pods(fleetNS).Create(ctx, p, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	return sleep(ctx, 2*time.Second) // the scheduler's view follows
}

func (f *fleet) pod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: fleetNS, Labels: map[string]string{"app": "load"}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](0),
			Containers: []corev1.Container{
				{Name: "c", Image: "localhost/hello:1",
					Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
						corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("500Mi"),
					}}}},
		},
	}
}

// bring creates n pods and returns the time until a watch has shown each of
// them as it is to be: bound, or running.
func (f *fleet) bring(ctx context.Context, n int, s shape, arrived func(*corev1.Pod) bool) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	pods := f.cluster.client.CoreV1().Pods(fleetNS)
	opts := metav1.ListOptions{LabelSelector: "app=load"}
	list, err := pods.List(ctx, opts)
	if err != nil {
		return 0, err
	}
	opts.ResourceVersion = list.ResourceVersion
	start := time.Now()
	var creating sync.WaitGroup
	var failed error
	creating.Go(func() {
		_, failed = parallel(ctx, n, writers, func(i int) error {
			p := f.pod(fmt.Sprintf("%s-%d", s.name, i))
			s.spec(p)
			_, err := pods.Create(ctx, p, metav1.CreateOptions{})
			return err
		})
		if failed != nil {
			cancel()
		}
	})
	there := map[string]bool{}
	for len(there) < n && err == nil {
		err = f.follow(ctx, &opts, func(p *corev1.Pod) bool {
			if arrived(p) {
				there[p.Name] = true
			}
			return len(there) == n
		})
	}
	took := time.Since(start)
	creating.Wait()
	if err = errors.Join(failed, err); err != nil {
		return 0, fmt.Errorf("%d of %d pods are as they should: %w; %s", len(there), n, err,
			f.waiting(context.WithoutCancel(ctx)))
	}
	return took, nil
}

// waiting tells why some pods are not bound.
func (f *fleet) waiting(ctx context.Context) string {
	list, err := f.cluster.client.CoreV1().Pods(fleetNS).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName="})
	if err != nil || len(list.Items) == 0 {
		return fmt.Sprintf("none waits for the scheduler: %v", err)
	}
	p := list.Items[0]
	return fmt.Sprintf("%d wait, such as %s: nominated %q, conditions %v", len(list.Items), p.Name,
		p.Status.NominatedNodeName, p.Status.Conditions)
}

// follow calls seen for each pod of a watch until it returns true or the
// server ends the watch.
func (f *fleet) follow(ctx context.Context, opts *metav1.ListOptions, seen func(*corev1.Pod) bool) error {
	w, err := f.cluster.client.CoreV1().Pods(fleetNS).Watch(ctx, *opts)
	if err != nil {
		return err
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, ok := <-w.ResultChan():
			if !ok {
				return nil
			}
			p, isPod := e.Object.(*corev1.Pod)
			if !isPod {
				return fmt.Errorf("watch: %v", e.Object)
			}
			opts.ResourceVersion = p.ResourceVersion
			if seen(p) {
				return nil
			}
		}
	}
}

// clear deletes all pods of the fleet.
func (f *fleet) clear(ctx context.Context) error {
	pods := f.cluster.client.CoreV1().Pods(fleetNS)
	list, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if _, err := parallel(ctx, len(list.Items), writers, func(i int) error {
		err := pods.Delete(ctx, list.Items[i].Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
		if isNotFound(err) {
			return nil
		}
		return err
	}); err != nil {
		return fmt.Errorf("delete pods: %w", err)
	}
	return sleep(ctx, 2*time.Second) // controllers and scheduler follow
}
