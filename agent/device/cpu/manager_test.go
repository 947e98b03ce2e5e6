package cpu

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/agent/device/ledger"
	"github.com/shoal-project/shoal/agent/device/ledger/ledgertest"
	"github.com/shoal-project/shoal/agent/device/topology"
)

type disk = ledgertest.Disk[Pod]

// podOf reads "init:2 sidecar~1 main=4": init containers, sidecars and others, with their CPUs.
// All of them have limits of memory, so that the pod is guaranteed.
func podOf(name, spec string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Status: corev1.PodStatus{QOSClass: corev1.PodQOSGuaranteed}}
	for f := range strings.FieldsSeq(spec) {
		i := strings.IndexAny(f, ":~=")
		list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(f[i+1:])}
		c := corev1.Container{Name: f[:i], Resources: corev1.ResourceRequirements{Requests: list, Limits: list}}
		switch f[i] {
		case ':':
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		case '~':
			c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		default:
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
	}
	return p
}

func start(t *testing.T, m *topology.Machine, o Options, reserved string, d disk) *Manager {
	t.Helper()
	out := &Manager{Machine: m, Options: o, Reserved: parse(t, reserved), Log: slog.New(slog.DiscardHandler),
		Ledger: &ledger.Ledger[Pod, *Pod]{What: "test", Records: d, Log: slog.New(slog.DiscardHandler)},
		QoS:    func(p *corev1.Pod) corev1.PodQOSClass { return p.Status.QOSClass }}
	if err := out.Load(); err != nil {
		t.Fatal(err)
	}
	return out
}

// ensure gives all containers of a pod their CPUs, near to no node.
func ensure(m *Manager, p *corev1.Pod) error {
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			if err := m.Allocate(context.Background(), p, &list[i], 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// shown is what the containers of a pod run on, as "main=1-2!" for CPUs of their own.
func shown(m *Manager, p *corev1.Pod) string {
	var out []string
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			on, exclusive := m.Of(p.UID, list[i].Name)
			out = append(out, fmt.Sprint(list[i].Name, "=", on, map[bool]string{true: "!"}[exclusive]))
		}
	}
	return strings.Join(out, " ")
}

func TestWhoGetsCPUs(t *testing.T) {
	for _, c := range []struct {
		name, spec string
		change     func(*corev1.Pod)
		want       string
	}{
		{"whole CPUs", "a=2 b=1", nil, "a=1-2! b=3!"},
		{"a part of a CPU", "a=1500m b=1", nil, "a=0,2-7 b=1!"},
		{"a thousand parts are one", "a=1000m", nil, "a=1!"},
		{"a pod that is not guaranteed", "a=2", func(p *corev1.Pod) { p.Status.QOSClass = corev1.PodQOSBurstable }, "a=0-7"},
		{"a pod that asks as a whole", "a=2",
			func(p *corev1.Pod) { p.Spec.Resources = &corev1.ResourceRequirements{} }, "a=0-7"},
		{"init containers' are used again", "a:2 b:3 c=4", nil, "a=1-2! b=1-3! c=1-4!"},
		{"sidecars' are not", "a:2 s~1 b=2", nil, "a=1-2! s=1! b=2-3!"},
		{"by one of the main containers", "a:2 b=1 c=1", nil, "a=1-2! b=1! c=2!"},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			m := start(t, machine(1, 1, 1, 8, 1), Options{}, "0", disk{})
			p := podOf("p", c.spec)
			if c.change != nil {
				c.change(p)
			}
			if err := ensure(m, p); err != nil {
				t.Fatal(err)
			}
			if got := shown(m, p); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			before := shown(m, p)
			if err := ensure(m, p); err != nil || shown(m, p) != before {
				t.Errorf("asked again: %s, %v", shown(m, p), err)
			}
		})
	}
}

func TestStrictReservation(t *testing.T) {
	for strict, want := range map[bool]string{false: "0,2-3", true: "2-3"} {
		m := start(t, machine(1, 1, 1, 4, 1), Options{StrictReservation: strict}, "0", disk{})
		if err := ensure(m, podOf("p", "a=1")); err != nil || m.Shared().String() != want {
			t.Errorf("strict %t: the others are on %s, want %s: %v", strict, m.Shared(), want, err)
		}
	}
}

func TestFullCores(t *testing.T) {
	m := start(t, machine(1, 1, 1, 4, 2), Options{FullCores: true}, "0", disk{}) // cores 0,4 1,5 2,6 3,7
	for _, c := range []struct{ spec, reason string }{
		{"a=3", "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"},
		{"a=8", "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 6, " +
			"requested CPUs = 8, CPUs per core = 2"},
	} {
		var rejected *topology.Rejection
		err := ensure(m, podOf("p", c.spec))
		if !errors.As(err, &rejected) || rejected.Reason != "SMTAlignmentError" || rejected.Message != c.reason {
			t.Errorf("%s: %v", c.spec, err)
		}
	}
	p := podOf("p", "a=6")
	if err := ensure(m, p); err != nil || shown(m, p) != "a=1-3,5-7!" {
		t.Errorf("%s, %v", shown(m, p), err)
	}
}

// A restart of the agent changes nothing for what runs. What a record says that cannot be true
// any more is nobody's.
func TestRestart(t *testing.T) {
	d := disk{}
	cpus := machine(1, 1, 1, 8, 1)
	m := start(t, cpus, Options{}, "0", d)
	p, q := podOf("p", "a=2"), podOf("q", "a=2")
	if err := errors.Join(ensure(m, p), ensure(m, q)); err != nil {
		t.Fatal(err)
	}
	m = start(t, cpus, Options{}, "0", d)
	if shown(m, p) != "a=1-2!" || shown(m, q) != "a=3-4!" || m.Shared().String() != "0,5-7" {
		t.Errorf("%s, %s, others on %s", shown(m, p), shown(m, q), m.Shared())
	}
	if n := len(m.Ledger.Pods()); n != 2 {
		t.Errorf("%d pods have CPUs", n)
	}
	if err := errors.Join(
		d.PutNow("r", &Pod{Pod: ledger.Pod{UID: "r"}, Containers: map[string]string{"a": "4-5"}}), // another's
		d.PutNow("s", &Pod{Pod: ledger.Pod{UID: "s"}, Containers: map[string]string{"a": "x"}}),
	); err != nil {
		t.Fatal(err)
	}
	m = start(t, cpus, Options{}, "0-1", d) // 1 is reserved now
	if len(d) != 1 || m.Has("p") || !m.Has("q") || m.Shared().String() != "0-2,5-7" {
		t.Errorf("%v, others on %s", d, m.Shared())
	}
}

func TestRelease(t *testing.T) {
	d := disk{}
	m := start(t, machine(1, 1, 1, 4, 1), Options{}, "0", d)
	changes := 0
	m.Changed = func(context.Context) { changes++ }
	p := podOf("p", "a=3")
	if err := ensure(m, p); err != nil {
		t.Fatal(err)
	}
	err := ensure(m, podOf("q", "a=1"))
	if err == nil || err.Error() != "not enough cpus available to satisfy request: requested=1, available=0" {
		t.Fatalf("%v", err)
	}
	states := map[types.UID][2]bool{"p": {true, false}}
	m.Ledger.Ending = func(uid types.UID) (bool, bool) { return states[uid][0], states[uid][1] }
	q1 := podOf("q", "a=1")
	if h := m.Hints(q1, &q1.Spec.Containers[0]); h != nil {
		t.Errorf("a pod that waits is said to fit nowhere: %v", h)
	}
	var waiting *ledger.Waiting
	if err := ensure(m, podOf("q", "a=1")); !errors.As(err, &waiting) {
		t.Errorf("while the other one ends: %v", err)
	}
	states["p"] = [2]bool{true, true}
	if err := ensure(m, podOf("q", "a=1")); err != nil {
		t.Errorf("it has ended: %v", err)
	}
	q := podOf("q", "a=1")
	if err := m.Release(t.Context(), q); err != nil || len(d) != 0 || m.Shared().String() != "0-3" || changes != 3 {
		t.Errorf("%v, %v, others on %s, %d changes", err, d, m.Shared(), changes)
	}
	// p's were freed for q; when it is released the others get what q did not take.
	if err := m.Release(t.Context(), p); err != nil || changes != 4 {
		t.Errorf("%v, %d changes", err, changes)
	}
	if err := m.Release(t.Context(), podOf("shared", "a=100m")); err != nil || changes != 4 {
		t.Errorf("a pod that had none: %v, %d changes", err, changes)
	}
}

func TestHints(t *testing.T) {
	read := func(h topology.Hints) string {
		if h == nil {
			return "none"
		}
		var out []string
		for _, one := range h["cpu"] {
			out = append(out, one.Nodes.String()+map[bool]string{true: "+"}[one.Preferred])
		}
		return strings.Join(out, " ")
	}
	for _, c := range []struct {
		name        string
		options     Options
		reserved    string
		taken, spec string
		want        string
	}{
		{"either node", Options{}, "0", "", "a=2", "0+ 1+ 0,1"},
		{"the node that has enough", Options{}, "0-2", "", "a=2", "1+ 0,1"},
		{"both together", Options{}, "0", "", "a=5", "0,1+"},
		{"one could, both can", Options{}, "0", "2 2", "a=3", "0,1"},
		{"nowhere", Options{}, "0", "", "a=8", ""},
		{"where init containers were", Options{}, "0", "", "i:4 a=2", "1+ 0,1"},
		{"no whole CPUs", Options{}, "0", "", "a=500m", "none"},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			m := start(t, machine(2, 1, 1, 4, 1), c.options, c.reserved, disk{})
			for i, n := range strings.Fields(c.taken) {
				p := podOf(fmt.Sprint("other", i), "a="+n)
				if err := m.Allocate(t.Context(), p, &p.Spec.Containers[0], topology.MaskOf(i)); err != nil {
					t.Fatal(err)
				}
			}
			p := podOf("p", c.spec)
			for i := range p.Spec.InitContainers {
				if err := m.Allocate(t.Context(), p, &p.Spec.InitContainers[i], 0); err != nil {
					t.Fatal(err)
				}
			}
			if got := read(m.Hints(p, &p.Spec.Containers[0])); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
	// Two sockets of two nodes each: a socket's nodes are as good as one.
	m := start(t, machine(2, 2, 1, 2, 1), Options{AlignBySocket: true}, "0", disk{})
	p := podOf("p", "a=2")
	got := read(m.Hints(p, &p.Spec.Containers[0]))
	if got != "1+ 0,1+ 2+ 0,2 1,2 0,1,2 3+ 0,3 1,3 0,1,3 2,3+ 0,2,3 1,2,3 0,1,2,3" {
		t.Errorf("by socket: %s", got)
	}
	if got := read(m.PodHints(podOf("q", "i:3 s~1 a=1 b=1"))); got != read(m.hints(3, cpuset.New())) {
		t.Errorf("of a pod: %s", got)
	}
}

// What is near is given first; the rest comes from elsewhere.
func TestNear(t *testing.T) {
	m := start(t, machine(2, 1, 1, 4, 1), Options{}, "0", disk{})
	for _, c := range []struct{ name, spec, want string }{{"p", "a=2", "a=4-5!"}, {"q", "a=3", "a=1,6-7!"}} {
		p := podOf(c.name, c.spec)
		err := m.Allocate(t.Context(), p, &p.Spec.Containers[0], topology.MaskOf(1))
		if err != nil || shown(m, p) != c.want {
			t.Errorf("%s, want %s: %v", shown(m, p), c.want, err)
		}
	}
}

func TestOptions(t *testing.T) {
	o, err := ParseOptions(map[string]string{"full-pcpus-only": "true", "strict-cpu-reservation": "true",
		"align-by-socket": "false"})
	if err != nil || o != (Options{FullCores: true, StrictReservation: true}) {
		t.Errorf("%+v, %v", o, err)
	}
	for _, values := range []map[string]string{
		{"full-pcpus-only": "1.5"}, {"unknown": "true"},
		{"full-pcpus-only": "true", "distribute-cpus-across-cores": "true"},
		{"prefer-align-cpus-by-uncorecache": "true", "distribute-cpus-across-numa": "true"},
	} {
		if _, err := ParseOptions(values); err == nil {
			t.Errorf("%v is let through", values)
		}
	}
	if err := (Options{AlignBySocket: true}).Check(machine(2, 1, 1, 1, 1), topology.SingleNode); err == nil {
		t.Error("align-by-socket is let through beside single-numa-node")
	}
	if err := (Options{AlignBySocket: true}).Check(machine(2, 1, 1, 1, 1), topology.Restricted); err != nil {
		t.Error(err)
	}
}

// runtime has containers, and what their CPUs were set to.
type runtime struct {
	mu   sync.Mutex
	list []Container
	sets []string
	fail map[string]bool
}

func (r *runtime) pool(of func(types.UID, string) string) *Pool {
	return &Pool{
		Of: of,
		List: func(context.Context) ([]Container, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.list, nil
		},
		Set: func(_ context.Context, id, cpus string) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.fail[id] {
				return errors.New("busy")
			}
			r.sets = append(r.sets, id+"="+cpus)
			return nil
		},
		Log: slog.New(slog.DiscardHandler),
	}
}

func (r *runtime) took(t *testing.T, want string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if got := strings.Join(r.sets, " "); got != want {
		t.Errorf("set %q, want %q", got, want)
	}
	r.sets = nil
}

func TestPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := "0-3"
		r := &runtime{list: []Container{{ID: "1", Name: "a", Pod: "p"}, {ID: "2", Name: "a", Pod: "own"}},
			fail: map[string]bool{}}
		p := r.pool(func(pod types.UID, _ string) string {
			if pod == "own" {
				return "7"
			}
			return shared
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- p.Run(ctx) }()
		synctest.Wait()
		r.took(t, "1=0-3 2=7")
		p.Apply(ctx)
		r.took(t, "") // nothing has changed
		shared = "0-1"
		p.Apply(ctx)
		r.took(t, "1=0-1")
		// One that was created on what the pool was before.
		three := Container{ID: "3", Name: "b", Pod: "p"}
		r.list = append(r.list, three)
		p.Created(ctx, three, "0-3")
		r.took(t, "3=0-1")
		p.Created(ctx, three, "0-1")
		r.took(t, "")
		// What fails is tried again, without the others.
		r.fail["1"], shared = true, "0"
		p.Apply(ctx)
		r.took(t, "3=0")
		r.mu.Lock()
		delete(r.fail, "1")
		r.mu.Unlock()
		time.Sleep(firstRetry + 1)
		synctest.Wait()
		r.took(t, "1=0")
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
