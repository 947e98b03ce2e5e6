package scheduler

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// cluster is a scheduler with a client that keeps bindings.
type cluster struct {
	t *testing.T
	*fake.Clientset
	ctx context.Context
	s   *Scheduler
}

// newCluster runs a scheduler until the test ends.
func newCluster(t *testing.T, objects ...runtime.Object) *cluster {
	t.Helper()
	return startCluster(t, func(*Scheduler) {}, objects...)
}

// startCluster lets change change the scheduler before it runs.
func startCluster(t *testing.T, change func(*Scheduler), objects ...runtime.Object) *cluster {
	t.Helper()
	return startConfigured(t, nil, change, objects...)
}

func startConfigured(t *testing.T, configuration *configv1.KubeSchedulerConfiguration, change func(*Scheduler),
	objects ...runtime.Object) *cluster {
	t.Helper()
	client := fake.NewClientset(objects...)
	client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		b, ok := a.(clienttesting.CreateAction).GetObject().(*corev1.Binding)
		if !ok {
			return false, nil, nil
		}
		gvr := corev1.SchemeGroupVersion.WithResource("pods")
		obj, err := client.Tracker().Get(gvr, b.Namespace, b.Name)
		if err != nil {
			return true, nil, err
		}
		pod := obj.(*corev1.Pod).DeepCopy()
		pod.Spec.NodeName = b.Target.Name
		return true, b, client.Tracker().Update(gvr, pod, b.Namespace)
	})
	factory := informers.NewSharedInformerFactory(client, 0)
	s, err := New(Config{Client: client, Informers: factory, Configuration: configuration})
	if err != nil {
		t.Fatal(err)
	}
	change(s)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	factory.Start(ctx.Done())
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		factory.Shutdown()
	})
	return &cluster{t, client, ctx, s}
}

func (c *cluster) create(pods ...*corev1.Pod) {
	c.t.Helper()
	for _, p := range pods {
		if _, err := c.CoreV1().Pods(p.Namespace).Create(c.ctx, p, metav1.CreateOptions{}); err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *cluster) eventually(what string, f func() bool) {
	c.t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if f() {
			return
		}
		if time.Now().After(end) {
			c.t.Fatalf("not seen in time: %s", what)
		}
	}
}

func (c *cluster) pod(name string) *corev1.Pod {
	p, err := c.CoreV1().Pods("default").Get(c.ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return p
}

func (c *cluster) bound(name, node string) {
	c.t.Helper()
	c.eventually(name+" on "+node, func() bool { p := c.pod(name); return p != nil && p.Spec.NodeName == node })
}

// refused waits for the condition with the message.
func (c *cluster) refused(name, message string) {
	c.t.Helper()
	last := ""
	c.eventually(fmt.Sprintf("%s refused with %q", name, message), func() bool {
		for _, k := range c.pod(name).Status.Conditions {
			if k.Type == corev1.PodScheduled && k.Status == corev1.ConditionFalse &&
				k.Reason == corev1.PodReasonUnschedulable {
				last = k.Message
			}
		}
		if last != message {
			c.t.Log(last)
		}
		return last == message
	})
}

func (c *cluster) event(pod, reason, note string) {
	c.t.Helper()
	c.eventually("event "+reason+" "+note, func() bool {
		l, _ := c.EventsV1().Events("").List(c.ctx, metav1.ListOptions{})
		for _, e := range l.Items {
			if e.Regarding.Name == pod && e.Reason == reason && strings.HasPrefix(e.Note, note) {
				return true
			}
		}
		return false
	})
}

type nodeOpt func(*corev1.Node)

func testNode(name, cpu, memory string, opts ...nodeOpt) *corev1.Node {
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu),
		corev1.ResourceMemory: resource.MustParse(memory), corev1.ResourcePods: resource.MustParse("110")}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{Allocatable: list, Capacity: list}}
	for _, o := range opts {
		o(n)
	}
	return n
}

func zone(z string) nodeOpt     { return func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = z } }
func label(k, v string) nodeOpt { return func(n *corev1.Node) { n.Labels[k] = v } }
func taint(k string, e corev1.TaintEffect) nodeOpt {
	return func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: k, Effect: e}) }
}
func cordon(n *corev1.Node) { n.Spec.Unschedulable = true }

type podOpt func(*corev1.Pod)

func testPod(name string, opts ...podOpt) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name),
			Labels: map[string]string{"app": "x"}},
		Spec: corev1.PodSpec{SchedulerName: corev1.DefaultSchedulerName,
			Containers: []corev1.Container{{Name: "c", Image: "img"}}}}
	for _, o := range opts {
		o(p)
	}
	return p
}

func requests(cpu, memory string) podOpt {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu),
			corev1.ResourceMemory: resource.MustParse(memory)}
	}
}
func on(node string) podOpt { return func(p *corev1.Pod) { p.Spec.NodeName = node } }
func app(a string) podOpt   { return func(p *corev1.Pod) { p.Labels = map[string]string{"app": a} } }
func priority(n int32) podOpt {
	return func(p *corev1.Pod) { p.Spec.Priority = &n }
}
func selector(k, v string) podOpt {
	return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{k: v} }
}

func TestBindsAndTells(t *testing.T) {
	c := newCluster(t, testNode("n1", "1", "1Gi", cordon), testNode("n2", "1", "1Gi"))
	c.create(testPod("a"))
	c.bound("a", "n2")
	c.event("a", "Scheduled", "Successfully assigned default/a to n2")
}

func TestRefusalInUpstreamsWords(t *testing.T) {
	c := newCluster(t, testNode("n1", "1", "1Gi", taint("k", corev1.TaintEffectNoSchedule)), testNode("n2", "1", "1Gi"),
		testNode("n3", "1", "1Gi"),
		testPod("x", requests("800m", "1Mi"), on("n2")), testPod("y", requests("800m", "1Mi"), on("n3")))
	c.create(testPod("a", requests("500m", "1Mi")))
	m := "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient cpu. no new claims to deallocate, preemption: 0/3 nodes are available: 1 Preemption is not helpful for scheduling, 2 No preemption victims found for incoming pod."
	c.refused("a", m)
	c.event("a", "FailedScheduling", m)
	// Room brings it back.
	if err := c.CoreV1().Pods("default").Delete(c.ctx, "x", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.bound("a", "n2")
}

// TestResizeMakesRoom: a pod that asks for less holds what it has until its node
// has taken it away, which only its status tells.
func TestResizeMakesRoom(t *testing.T) {
	had := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("800m"),
		corev1.ResourceMemory: resource.MustParse("1Mi")}
	has := func(l corev1.ResourceList) podOpt {
		return func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", AllocatedResources: l,
				Resources: &corev1.ResourceRequirements{Requests: l}}}
		}
	}
	x := testPod("x", requests("800m", "1Mi"), on("n1"), has(had))
	x.Generation = 1
	c := newCluster(t, testNode("n1", "1", "1Gi"), x)
	c.create(testPod("a", requests("500m", "1Mi")))
	m := "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
	c.refused("a", m)
	less := x.DeepCopy()
	requests("300m", "1Mi")(less)
	less.Generation = 2
	update := func(p *corev1.Pod) {
		if _, err := c.CoreV1().Pods("default").Update(c.ctx, p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	update(less)
	done := less.DeepCopy()
	has(less.Spec.Containers[0].Resources.Requests)(done)
	update(done)
	c.bound("a", "n1")
}

func TestNoNodesThenOne(t *testing.T) {
	c := newCluster(t)
	c.create(testPod("a"))
	c.refused("a", "no nodes available to schedule pods")
	if _, err := c.CoreV1().Nodes().Create(c.ctx, testNode("n1", "1", "1Gi"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.bound("a", "n1")
}

func TestGatesHoldAndRelease(t *testing.T) {
	c := newCluster(t, testNode("n1", "1", "1Gi"))
	p := testPod("a")
	p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}}
	c.create(p)
	c.eventually("condition SchedulingGated", func() bool {
		for _, k := range c.pod("a").Status.Conditions {
			if k.Reason == corev1.PodReasonSchedulingGated && k.Message == "Scheduling is blocked due to non-empty scheduling gates" {
				return true
			}
		}
		return false
	})
	open := c.pod("a")
	open.Spec.SchedulingGates = nil
	if _, err := c.CoreV1().Pods("default").Update(c.ctx, open, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.bound("a", "n1")
}

func TestPreemptionSparesBudgets(t *testing.T) {
	one := intstr.FromInt32(1)
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "b"},
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &one,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "kept"}}}}
	c := newCluster(t, testNode("n1", "1", "1Gi"), testNode("n2", "1", "1Gi"), budget,
		testPod("kept", requests("800m", "1Mi"), on("n1"), app("kept")), testPod("low", requests("800m", "1Mi"), on("n2")))
	c.create(testPod("high", requests("500m", "1Mi"), priority(100)))
	c.bound("high", "n2")
	if c.pod("low") != nil || c.pod("kept") == nil {
		t.Fatal("wrong victim")
	}
	c.event("low", "Preempted", "Preempted by pod high on node n2")
}

// A victim that could not be deleted is tried again, though nothing in the cluster changes.
func TestFailedPreemptionIsRetried(t *testing.T) {
	failures := 1
	c := startCluster(t, func(s *Scheduler) {
		s.c.Client.(*fake.Clientset).PrependReactor("delete", "pods",
			func(clienttesting.Action) (bool, runtime.Object, error) {
				failures--
				return failures >= 0, nil, errors.New("a webhook does not answer")
			})
	}, testNode("n1", "1", "1Gi"), testPod("low", requests("800m", "1Mi"), on("n1")))
	c.create(testPod("high", requests("500m", "1Mi"), priority(100)))
	c.event("high", "FailedScheduling", "0/1 nodes are available: 1 Insufficient cpu. "+
		"preemption: preempt pod default/low: a webhook does not answer")
	c.bound("high", "n1")
}

func TestForeignAndBoundPodsAreLeftAlone(t *testing.T) {
	c := newCluster(t, testNode("n1", "1", "1Gi"))
	foreign := testPod("foreign")
	foreign.Spec.SchedulerName = "other"
	c.create(foreign, testPod("a"))
	c.bound("a", "n1")
	if c.pod("foreign").Spec.NodeName != "" {
		t.Fatal("took another scheduler's pod")
	}
}

// TestFailedBindingIsRetried: the room that the pod was to take is free again meanwhile.
func TestFailedBindingIsRetried(t *testing.T) {
	failures := 1
	c := startCluster(t, func(s *Scheduler) {
		s.c.Client.(*fake.Clientset).PrependReactor("create", "pods",
			func(a clienttesting.Action) (bool, runtime.Object, error) {
				if a.GetSubresource() == "binding" && failures > 0 {
					failures--
					return true, nil, errors.New("etcd is on fire")
				}
				return false, nil, nil
			})
	}, testNode("n1", "1", "1Gi"))
	// Of the node that was made room on the pod's status says nothing more.
	c.create(testPod("a", requests("800m", "1Mi"), func(p *corev1.Pod) { p.Status.NominatedNodeName = "n1" }))
	c.eventually("nobody is nominated", func() bool { return c.pod("a").Status.NominatedNodeName == "" })
	c.event("a", "FailedScheduling", `running Bind plugin "DefaultBinder": etcd is on fire`)
	c.bound("a", "n1")
}

// Who was kept from a node for a pod that was to come is tried again when it is not to come
// there any more.
func TestNominationIsWithdrawn(t *testing.T) {
	c := newCluster(t, testNode("n1", "1", "1Gi"))
	c.create(testPod("high", requests("800m", "1Mi"), priority(100), func(p *corev1.Pod) {
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}}
		p.Status.NominatedNodeName = "n1"
	}))
	c.eventually("the pod is nominated", func() bool { return c.s.nominated.of("high") == "n1" })
	c.create(testPod("low", requests("500m", "1Mi"), priority(1)))
	c.event("low", "FailedScheduling", "0/1 nodes are available: 1 Insufficient cpu.")
	high := c.pod("high")
	high.Status.NominatedNodeName = ""
	if _, err := c.CoreV1().Pods("default").UpdateStatus(c.ctx, high, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.bound("low", "n1")
}

// heldPermit lets each pod wait.
type heldPermit struct{}

func (heldPermit) Name() string { return "Held" }
func (heldPermit) Permit(context.Context, *framework.PodInfo, string) (*framework.Status, time.Duration) {
	return framework.NewStatus(framework.Wait), time.Minute
}

func TestPermitHoldsUntilAllowed(t *testing.T) {
	c := startCluster(t, func(s *Scheduler) {
		s.profiles[corev1.DefaultSchedulerName].permit = []framework.PermitPlugin{heldPermit{}}
	}, testNode("n1", "1", "1Gi"))
	c.create(testPod("a"), testPod("b"))
	c.eventually("both wait", func() bool { return c.s.cache.has("a") && c.s.cache.has("b") })
	c.s.waiting.allow("b", "Held")
	c.bound("b", "n1")
	if c.pod("a").Spec.NodeName != "" {
		t.Fatal("bound without permission")
	}
	// a still waits when the scheduler stops: Run must end all the same.
}

// firstPermit lets a pod wait once, and then refuses it.
type firstPermit struct{ asked atomic.Int32 }

func (*firstPermit) Name() string { return "First" }
func (p *firstPermit) Permit(context.Context, *framework.PodInfo, string) (*framework.Status, time.Duration) {
	if p.asked.Add(1) == 1 {
		return framework.NewStatus(framework.Wait), time.Minute
	}
	return framework.NewStatus(framework.Unschedulable, "no more"), 0
}

// While a pod waits its status tells where it will be, and no more when it is not to be there.
func TestPodThatWaitsIsNominated(t *testing.T) {
	c := startCluster(t, func(s *Scheduler) {
		s.profiles[corev1.DefaultSchedulerName].permit = []framework.PermitPlugin{&firstPermit{}}
	}, testNode("n1", "1", "1Gi"))
	c.create(testPod("a"))
	c.eventually("the node is told", func() bool { return c.pod("a").Status.NominatedNodeName == "n1" })
	c.s.waiting.reject("a")
	c.refused("a", "0/1 nodes are available: 1 no more.")
	c.eventually("no node is told", func() bool { return c.pod("a").Status.NominatedNodeName == "" })
}

// slowPreBind waits for ever for what one pod has claimed.
type slowPreBind struct{ pod string }

func (slowPreBind) Name() string                            { return "Slow" }
func (p slowPreBind) PreFlight(pod *framework.PodInfo) bool { return pod.Pod.Name == p.pod }
func (p slowPreBind) PreBind(ctx context.Context, pod *framework.PodInfo, _ string) *framework.Status {
	if pod.Pod.Name == p.pod {
		<-ctx.Done()
		return framework.AsStatus(context.Cause(ctx))
	}
	return nil
}

// A pod that still waits for a volume or a device gives way without being deleted.
func TestPreemptedBeforeItIsBound(t *testing.T) {
	c := startCluster(t, func(s *Scheduler) {
		s.profiles[corev1.DefaultSchedulerName].preBind = []framework.PreBindPlugin{slowPreBind{"low"}}
	}, testNode("n1", "1", "1Gi"))
	c.create(testPod("low", requests("800m", "1Mi"), priority(1)))
	c.eventually("the node is told", func() bool { return c.pod("low").Status.NominatedNodeName == "n1" })
	c.create(testPod("high", requests("500m", "1Mi"), priority(100)))
	c.bound("high", "n1")
	c.event("low", "Preempted", "Preempted by pod high on node n1 (in kube-scheduler memory).")
	c.event("low", "FailedScheduling", "preempted by DefaultPreemption")
	if c.pod("low") == nil {
		t.Error("the pod was deleted")
	}
}
