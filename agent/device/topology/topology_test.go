package topology

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	corev1 "k8s.io/api/core/v1"
)

// files is a tree as /sys/devices/system, of lines "path: content".
func files(lines string) fstest.MapFS {
	out := fstest.MapFS{}
	for l := range strings.Lines(lines) {
		if path, content, ok := strings.Cut(strings.TrimSpace(l), ": "); ok {
			out[path] = &fstest.MapFile{Data: []byte(content + "\n")}
		}
	}
	return out
}

// Two sockets of a core with two threads and a core of which one is offline, a node each, and
// a node that has memory alone.
const twoSockets = `
	cpu/online: 0-2,4-6
	node/online: 0-2
	node/node0/cpulist: 0-2
	node/node1/cpulist: 4-6
	node/node2/cpulist:
	node/node0/meminfo: Node 0 MemTotal:        1024 kB
	node/node1/meminfo: Node 1 MemTotal:        2048 kB
	node/node2/meminfo: Node 2 MemTotal:        4096 kB
	node/node0/distance: 10 21 17
	node/node1/distance: 21 10 28
	node/node2/distance: 17 28 10
	node/node1/hugepages/hugepages-2048kB/nr_hugepages: 3
`

func twoSocketFiles() fstest.MapFS {
	out := files(twoSockets)
	out["node/node2/cpulist"] = &fstest.MapFile{Data: []byte("\n")}
	for cpu, threads := range map[int]string{0: "0-1", 1: "0-1", 2: "2", 4: "4-5", 5: "4-5", 6: "6"} {
		dir := fmt.Sprintf("cpu/cpu%d/", cpu)
		out[dir+"topology/core_cpus_list"] = &fstest.MapFile{Data: []byte(threads + "\n")}
		out[dir+"topology/physical_package_id"] = &fstest.MapFile{Data: fmt.Append(nil, cpu/4, "\n")}
		if cpu < 4 {
			out[dir+"cache/index2/level"] = &fstest.MapFile{Data: []byte("2\n")}
			out[dir+"cache/index3/level"] = &fstest.MapFile{Data: []byte("3\n")}
			out[dir+"cache/index3/shared_cpu_list"] = &fstest.MapFile{Data: []byte("0-2\n")}
		}
	}
	return out
}

func TestMachineIsReadOfSys(t *testing.T) {
	m, err := Read(twoSocketFiles(), 1)
	if err != nil {
		t.Fatal(err)
	}
	for cpu, want := range map[int]CPU{
		0: {Core: 0, Cache: 0, Socket: 0, Node: 0}, 1: {Core: 0, Cache: 0, Socket: 0, Node: 0},
		2: {Core: 2, Cache: 0, Socket: 0, Node: 0}, 5: {Core: 4, Cache: 4, Socket: 1, Node: 1},
		6: {Core: 6, Cache: 4, Socket: 1, Node: 1},
	} {
		if m.CPUs[cpu] != want {
			t.Errorf("CPU %d: %+v, want %+v", cpu, m.CPUs[cpu], want)
		}
	}
	if got := m.All().String(); got != "0-2,4-6" {
		t.Errorf("online: %s", got)
	}
	if n := m.Nodes[1]; n.MemoryBytes != 2<<20 || n.HugePages[2<<20] != 6<<20 || n.Distances[2] != 28 {
		t.Errorf("node 1: %+v", n)
	}
	if m.On(MaskOf(1, 2)).String() != "4-6" || m.NodeMask() != MaskOf(0, 1, 2) || m.Sockets(MaskOf(0, 1)) != 2 {
		t.Error("nodes and their CPUs")
	}
}

func TestMachineWithoutNUMAHasOneNode(t *testing.T) {
	system := files(`
		cpu/online: 0
		cpu/cpu0/topology/thread_siblings_list: 0
		cpu/cpu0/topology/physical_package_id: 0`)
	m, err := Read(system, 42)
	if err != nil || len(m.Nodes) != 1 || m.Nodes[0].MemoryBytes != 42 || m.ThreadsPerCore() != 1 {
		t.Errorf("%+v, %v", m, err)
	}
	delete(system, "cpu/cpu0/topology/physical_package_id")
	if _, err := Read(system, 42); err == nil || !strings.HasPrefix(err.Error(), "CPU 0: ") {
		t.Errorf("a CPU of which nothing is known: %v", err)
	}
}

func TestSubsets(t *testing.T) {
	var got []string
	for s := range MaskOf(0, 1, 3).Subsets() {
		got = append(got, s.String())
	}
	if want := "0 1 0,1 3 0,3 1,3 0,1,3"; strings.Join(got, " ") != want {
		t.Errorf("%v, want %s", got, want)
	}
}

// hints reads "0+ 1+ 0,1": sets of nodes, preferred with a plus; "*" is any.
func hints(t *testing.T, resource, list string) Hints {
	t.Helper()
	out := []Hint{}
	for _, f := range strings.Fields(list) {
		name, preferred := strings.CutSuffix(f, "+")
		h := Hint{Preferred: preferred}
		if name != "*" {
			for n := range strings.SplitSeq(name, ",") {
				var node int
				if _, err := fmt.Sscan(n, &node); err != nil {
					t.Fatal(err)
				}
				h.Nodes |= MaskOf(node)
			}
		}
		out = append(out, h)
	}
	return Hints{resource: out}
}

func nodes(n int) *Machine {
	m := &Machine{Nodes: map[int]Node{}}
	for i := range n {
		m.Nodes[i] = Node{}
	}
	return m
}

func TestPolicies(t *testing.T) {
	for _, c := range []struct {
		name         string
		cpus, others string
		// Nodes, with a "-" when the pod is rejected: by best-effort, restricted and the single node.
		want string
	}{
		{"nothing is asked of one", "0+ 1+ 0,1", "", "0 0 0"},
		{"both can be on a node", "0+ 1+ 0,1", "1+ 0,1", "1 1 1"},
		{"one can be anywhere", "1+ 0,1", "*+", "1 1 1"},
		{"both need two nodes", "0,1+", "0,1+", "* * -"},
		{"each is on another node", "0+", "1+", "* - -"},
		{"one needs two nodes", "0+ 1+ 0,1", "0,1+", "* - -"},
		{"none of the few nodes is free", "0,1", "0+ 1+ 0,1", "* - -"},
		{"it can be had nowhere", "", "0+", "* - -"},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			all := []Hints{hints(t, "cpu", c.cpus)}
			if c.others != "" {
				all = append(all, hints(t, "vendor.example/dev", c.others))
			}
			var got []string
			for _, p := range []Policy{BestEffort, Restricted, SingleNode} {
				on, admitted := chooser{machine: nodes(2), policy: p}.choose(all)
				switch {
				case !admitted:
					got = append(got, "-")
				case on == 0:
					got = append(got, "*")
				default:
					got = append(got, on.String())
				}
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("%v, want %s", got, c.want)
			}
		})
	}
}

// Of sets that are not preferred the one is chosen that has as many nodes as the resource needs
// that needs the most.
func TestBestOfWhatIsNotPreferred(t *testing.T) {
	c := chooser{machine: nodes(4), policy: BestEffort}
	got, _ := c.choose([]Hints{hints(t, "cpu", "0,1 0,2 0,1,2 0,1,2,3"), hints(t, "dev", "0 1 0,1 0,2 0,1,2,3")})
	if got.String() != "0,1" {
		t.Errorf("%s, want 0,1", got)
	}
}

func TestClosestNodes(t *testing.T) {
	m := nodes(3)
	for id := range m.Nodes {
		m.Nodes[id] = Node{Distances: map[int]int{0: 21, 1: 21, 2: 21, id: 10}}
	}
	m.Nodes[1].Distances[2], m.Nodes[2].Distances[1] = 12, 12
	all := []Hints{hints(t, "cpu", "0,1+ 0,2+ 1,2+")}
	if got, _ := (chooser{machine: m, policy: Restricted}).choose(all); got != MaskOf(0, 1) {
		t.Errorf("without the option: %s", got)
	}
	if got, _ := (chooser{machine: m, policy: Restricted, closest: true}).choose(all); got != MaskOf(1, 2) {
		t.Errorf("with the option: %s", got)
	}
}

// provider has hints by container, and notes what it was asked to allocate.
type provider struct {
	t         *testing.T
	hints     map[string]string
	allocated []string
	err       error
}

func (f *provider) Hints(_ *corev1.Pod, c *corev1.Container) Hints {
	if list, ok := f.hints[c.Name]; ok {
		return hints(f.t, "cpu", list)
	}
	return nil
}

func (f *provider) PodHints(*corev1.Pod) Hints {
	if list, ok := f.hints["pod"]; ok {
		return hints(f.t, "cpu", list)
	}
	return nil
}

func (f *provider) Allocate(_ context.Context, _ *corev1.Pod, c *corev1.Container, near Mask) error {
	f.allocated = append(f.allocated, c.Name+"="+near.String())
	return f.err
}

func TestScopes(t *testing.T) {
	p := &corev1.Pod{Spec: corev1.PodSpec{InitContainers: []corev1.Container{{Name: "init"}},
		Containers: []corev1.Container{{Name: "a"}, {Name: "b"}}}}
	for _, c := range []struct {
		policy Policy
		scope  string
		want   []string
		err    bool
	}{
		{None, ContainerScope, []string{"init=", "a=", "b="}, false},
		{BestEffort, ContainerScope, []string{"init=", "a=0", "b=1"}, false},
		{Restricted, ContainerScope, []string{"init=", "a=0", "b=1"}, false},
		{BestEffort, PodScope, []string{"init=2", "a=2", "b=2"}, false},
		{Restricted, PodScope, nil, true},
	} {
		f := &provider{t: t, hints: map[string]string{"a": "0+ 1+", "b": "1+", "pod": "2"}}
		m, err := New(Manager{Machine: nodes(3), Policy: c.policy, Scope: c.scope, Providers: []Provider{f}}, 0)
		if err != nil {
			t.Fatal(err)
		}
		err = m.Ensure(t.Context(), p)
		var rejected *Rejection
		if errors.As(err, &rejected) != c.err || !slices.Equal(f.allocated, c.want) {
			t.Errorf("%s, %s: %v, %v", c.policy, c.scope, f.allocated, err)
		}
		if c.err && (rejected.Reason != "TopologyAffinityError" || len(m.turn) != 0) {
			t.Errorf("%s, %s: %+v", c.policy, c.scope, rejected)
		}
	}
}

// A provider that hangs holds up only pods that ask for something to be aligned.
func TestOnePodAtATime(t *testing.T) {
	f := &provider{t: t, hints: map[string]string{"pod": "0+", "a": "0+"}}
	m, err := New(Manager{Machine: nodes(2), Policy: BestEffort, Scope: ContainerScope, Providers: []Provider{f}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	m.turn <- struct{}{} // another pod's
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}}}}
	if err := m.Ensure(ctx, p); !errors.Is(err, context.Canceled) {
		t.Errorf("a pod that asks did not wait: %v", err)
	}
	delete(f.hints, "pod")
	if err := m.Ensure(t.Context(), p); err != nil || len(f.allocated) != 1 {
		t.Errorf("a pod that asks for nothing: %v, %v", f.allocated, err)
	}
}

func TestTooManyNodes(t *testing.T) {
	if _, err := New(Manager{Machine: nodes(9), Policy: BestEffort}, 0); err == nil {
		t.Error("nine nodes are let through")
	}
	if _, err := New(Manager{Machine: nodes(9), Policy: None}, 0); err != nil {
		t.Errorf("nobody looks at the sets of nodes: %v", err)
	}
	if _, err := New(Manager{Machine: nodes(9), Policy: BestEffort}, 9); err != nil {
		t.Errorf("nine are allowed: %v", err)
	}
}

func TestConfigure(t *testing.T) {
	var m Manager
	n, err := m.Configure(map[string]string{"prefer-closest-numa-nodes": "true", "max-allowable-numa-nodes": "12"})
	if err != nil || n != 12 || !m.Closest {
		t.Errorf("%d, %v, %v", n, m.Closest, err)
	}
	_, err = m.Configure(map[string]string{"prefer-closest-numa-nodes": "yes", "max-allowable-numa-nodes": "4",
		"other": "1"})
	for _, name := range []string{"prefer-closest-numa-nodes", "max-allowable-numa-nodes", "other"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not told of: %v", name, err)
		}
	}
}
