package scheduler

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
)

// program is an extender: it answers by functions, and keeps what it was asked.
type program struct {
	mu    sync.Mutex
	asked []string // verb and pod

	filter     func(extenderv1.ExtenderArgs) extenderv1.ExtenderFilterResult
	prioritize func(extenderv1.ExtenderArgs) extenderv1.HostPriorityList
	preempt    func(extenderv1.ExtenderPreemptionArgs) extenderv1.ExtenderPreemptionResult
	bind       func(extenderv1.ExtenderBindingArgs) extenderv1.ExtenderBindingResult
}

func answer[A, R any](w http.ResponseWriter, r *http.Request, f func(A) R) {
	var args A
	if f == nil || json.NewDecoder(r.Body).Decode(&args) != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	_ = json.NewEncoder(w).Encode(f(args))
}

func (p *program) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.asked = append(p.asked, r.URL.Path)
	p.mu.Unlock()
	switch r.URL.Path {
	case "/v1/filter":
		answer(w, r, p.filter)
	case "/v1/prioritize":
		answer(w, r, p.prioritize)
	case "/v1/preempt":
		answer(w, r, p.preempt)
	case "/v1/bind":
		answer(w, r, p.bind)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func (p *program) times(path string) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.asked {
		if a == path {
			n++
		}
	}
	return n
}

// extended starts a cluster with an extender that change configures.
func extended(t *testing.T, p *program, change func(*configv1.Extender), nodes ...*corev1.Node) *cluster {
	t.Helper()
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	e := configv1.Extender{URLPrefix: server.URL + "/v1/"}
	if p.filter != nil {
		e.FilterVerb = "filter"
	}
	if p.prioritize != nil {
		e.PrioritizeVerb, e.Weight = "prioritize", 5
	}
	if p.preempt != nil {
		e.PreemptVerb = "preempt"
	}
	if p.bind != nil {
		e.BindVerb = "bind"
	}
	if change != nil {
		change(&e)
	}
	c := startConfigured(t, &configv1.KubeSchedulerConfiguration{Extenders: []configv1.Extender{e}}, func(*Scheduler) {})
	for _, n := range nodes {
		if _, err := c.CoreV1().Nodes().Create(c.ctx, n, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func only(names ...string) func(extenderv1.ExtenderArgs) extenderv1.ExtenderFilterResult {
	return func(args extenderv1.ExtenderArgs) extenderv1.ExtenderFilterResult {
		out := extenderv1.ExtenderFilterResult{FailedNodes: extenderv1.FailedNodesMap{}, NodeNames: &[]string{}}
		for _, n := range *args.NodeNames {
			if strings.Contains(strings.Join(names, " "), n) {
				*out.NodeNames = append(*out.NodeNames, n)
			} else {
				out.FailedNodes[n] = "not for " + args.Pod.Name
			}
		}
		return out
	}
}

func byName(e *configv1.Extender) { e.NodeCacheCapable = true }

func TestExtenderFilters(t *testing.T) {
	c := extended(t, &program{filter: only("b")}, byName, testNode("a", "4", "8Gi"), testNode("b", "4", "8Gi"),
		testNode("c", "4", "8Gi"))
	for _, name := range []string{"p", "q", "r"} {
		c.create(testPod(name))
		c.bound(name, "b")
	}
}

// Whole nodes are sent to one that keeps none, and its words are told.
func TestExtenderRefuses(t *testing.T) {
	allow := make(chan struct{})
	p := &program{filter: func(args extenderv1.ExtenderArgs) extenderv1.ExtenderFilterResult {
		select {
		case <-allow:
			return extenderv1.ExtenderFilterResult{Nodes: args.Nodes}
		default:
		}
		return extenderv1.ExtenderFilterResult{FailedAndUnresolvableNodes: extenderv1.FailedNodesMap{
			args.Nodes.Items[0].Name: "no licence for " + args.Nodes.Items[0].Status.Allocatable.Cpu().String()}}
	}}
	c := extended(t, p, nil, testNode("a", "4", "8Gi"))
	c.create(testPod("p"))
	c.refused("p", "0/1 nodes are available: 1 no licence for 4. no new claims to deallocate, preemption: 0/1 nodes are available: "+
		"1 Preemption is not helpful for scheduling.")
	close(allow)
	// Any event brings the pod back.
	n, err := c.CoreV1().Nodes().Get(c.ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.Labels = map[string]string{"x": "y"}
	if _, err := c.CoreV1().Nodes().Update(c.ctx, n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.bound("p", "a")
}

func TestExtenderPrioritizes(t *testing.T) {
	p := &program{prioritize: func(args extenderv1.ExtenderArgs) (out extenderv1.HostPriorityList) {
		for _, n := range *args.NodeNames {
			score := int64(0)
			if n == "small" {
				score = extenderv1.MaxExtenderPriority
			}
			out = append(out, extenderv1.HostPriority{Host: n, Score: score})
		}
		return out
	}}
	c := extended(t, p, byName, testNode("large", "64", "80Gi"), testNode("small", "4", "8Gi"))
	for _, name := range []string{"p", "q", "r"} {
		c.create(testPod(name, requests("1", "1Gi")))
		c.bound(name, "small")
	}
}

// An error keeps pods from being scheduled, unless the extender may be ignored.
func TestExtenderFails(t *testing.T) {
	for _, tc := range []struct {
		ignorable bool
	}{{false}, {true}} {
		p := &program{}
		c := extended(t, p, func(e *configv1.Extender) {
			e.FilterVerb, e.Ignorable = "filter", tc.ignorable
		}, testNode("a", "4", "8Gi"))
		c.create(testPod("p"))
		if tc.ignorable {
			c.bound("p", "a")
			continue
		}
		c.event("p", "FailedScheduling", "failed filter with extender at URL")
	}
}

// An extender for a resource is asked about pods that want it, and counts it in the
// scheduler's place.
func TestExtenderManagesResource(t *testing.T) {
	p := &program{filter: only("b")}
	c := extended(t, p, func(e *configv1.Extender) {
		e.NodeCacheCapable = true
		e.ManagedResources = []configv1.ExtenderManagedResource{{Name: "example.com/foo", IgnoredByScheduler: true}}
	}, testNode("b", "4", "8Gi"))
	c.create(testPod("plain"))
	c.bound("plain", "b")
	if n := p.times("/v1/filter"); n != 0 {
		t.Errorf("it was asked %d times about a pod without its resource", n)
	}
	c.create(testPod("wants", func(p *corev1.Pod) {
		foo := corev1.ResourceList{"example.com/foo": resource.MustParse("1")}
		p.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: foo,
			Limits: foo}}}
	}))
	c.bound("wants", "b")
	if n := p.times("/v1/filter"); n != 1 {
		t.Errorf("it was asked %d times about a pod with its resource", n)
	}
}

func TestExtenderBinds(t *testing.T) {
	bound := make(chan extenderv1.ExtenderBindingArgs, 10)
	p := &program{bind: func(args extenderv1.ExtenderBindingArgs) (out extenderv1.ExtenderBindingResult) {
		if args.PodName == "bad" {
			out.Error = "no driver"
		}
		bound <- args
		return out
	}}
	c := extended(t, p, nil, testNode("a", "4", "8Gi"))
	c.create(testPod("p"), testPod("bad"))
	c.event("p", "Scheduled", "Successfully assigned default/p to a")
	c.event("bad", "FailedScheduling", "extender: no driver")
	if got := c.pod("p"); got.Spec.NodeName != "" {
		t.Errorf("the scheduler bound the pod too, to %s", got.Spec.NodeName)
	}
	for range 2 {
		select {
		case args := <-bound:
			if args.Node != "a" || args.PodNamespace != "default" {
				t.Errorf("asked to bind %+v", args)
			}
		default:
			t.Fatal("it was not asked twice")
		}
	}
}

// Of the nodes where preemption would help an extender leaves one, and spares a pod
// there.
func TestExtenderPreempts(t *testing.T) {
	p := &program{preempt: func(args extenderv1.ExtenderPreemptionArgs) extenderv1.ExtenderPreemptionResult {
		return extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: map[string]*extenderv1.MetaVictims{
			"b": args.NodeNameToMetaVictims["b"]}}
	}}
	c := extended(t, p, byName, testNode("a", "4", "8Gi"), testNode("b", "4", "8Gi"))
	// Without the extender the victim of lower priority would go.
	c.create(testPod("low", requests("3", "1Gi"), priority(1), on("a")),
		testPod("middle", requests("3", "1Gi"), priority(2), on("b")))
	c.eventually("the pods are known", func() bool {
		_, pods, _ := c.s.cache.size()
		return pods == 2
	})
	c.create(testPod("high", requests("3", "1Gi"), priority(10)))
	c.bound("high", "b")
	if c.pod("low") == nil || c.pod("middle") != nil {
		t.Errorf("low %v, middle %v", c.pod("low"), c.pod("middle"))
	}
}

// What an ignorable extender does not do the scheduler does itself, and a node for which it
// leaves no victim is none to make room on.
func TestIgnorableExtenderFails(t *testing.T) {
	ignorable := func(e *configv1.Extender) { e.NodeCacheCapable, e.Ignorable = true, true }
	c := extended(t, &program{
		bind: func(extenderv1.ExtenderBindingArgs) extenderv1.ExtenderBindingResult {
			return extenderv1.ExtenderBindingResult{Error: "no driver"}
		},
		preempt: func(args extenderv1.ExtenderPreemptionArgs) extenderv1.ExtenderPreemptionResult {
			return extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: map[string]*extenderv1.MetaVictims{
				"a": {}, "b": args.NodeNameToMetaVictims["b"]}}
		},
	}, ignorable, testNode("a", "4", "8Gi"), testNode("b", "4", "8Gi"))
	c.create(testPod("low", requests("3", "1Gi"), priority(1), on("a")),
		testPod("middle", requests("3", "1Gi"), priority(2), on("b")))
	c.eventually("the pods are known", func() bool {
		_, pods, _ := c.s.cache.size()
		return pods == 2
	})
	c.create(testPod("high", requests("3", "1Gi"), priority(10)))
	c.bound("high", "b")
}
