package memory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/agent/device/ledger"
	"github.com/shoal-project/shoal/agent/device/ledger/ledgertest"
	"github.com/shoal-project/shoal/agent/device/topology"
	"github.com/shoal-project/shoal/agent/metrics"
)

type disk = ledgertest.Disk[Pod]

const gi = 1 << 30

// podOf reads "init:2 sidecar~1 main=4": init containers, sidecars and others, with their Gi of
// memory; "main=4,1" has huge pages too.
func podOf(name, spec string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Status: corev1.PodStatus{QOSClass: corev1.PodQOSGuaranteed}}
	for f := range strings.FieldsSeq(spec) {
		i := strings.IndexAny(f, ":~=")
		memory, huge, _ := strings.Cut(f[i+1:], ",")
		list := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory + "Gi")}
		if huge != "" {
			list["hugepages-2Mi"] = resource.MustParse(huge + "Gi")
		}
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

// start has nodes with the Gi of memory each.
func start(t *testing.T, d disk, nodes ...int64) *Manager {
	t.Helper()
	m := &Manager{Allocatable: Amounts{},
		Ledger: &ledger.Ledger[Pod, *Pod]{What: "test", Records: d, Log: slog.New(slog.DiscardHandler)},
		QoS:    func(p *corev1.Pod) corev1.PodQOSClass { return p.Status.QOSClass }}
	for i, n := range nodes {
		m.Allocatable.Add(i, corev1.ResourceMemory, n*gi)
		m.Allocatable.Add(i, "hugepages-2Mi", gi)
	}
	if err := m.Load(); err != nil {
		t.Fatal(err)
	}
	return m
}

func ensure(m *Manager, p *corev1.Pod, near topology.Mask) error {
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			if err := m.Allocate(context.Background(), p, &list[i], near); err != nil {
				return err
			}
		}
	}
	return nil
}

// shown is what the containers of a pod have, as "main=0:2,1:1": Gi of nodes, of all kinds.
func shown(m *Manager, p *corev1.Pod) string {
	var out []string
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			var parts []string
			for _, b := range m.Blocks(p.UID, list[i].Name) {
				for _, node := range b.Nodes.Nodes() {
					parts = append(parts, fmt.Sprint(node, ":", b.On[node]/gi))
				}
			}
			out = append(out, list[i].Name+"="+strings.Join(parts, ","))
		}
	}
	return strings.Join(out, " ")
}

func TestAllocate(t *testing.T) {
	for _, c := range []struct {
		name   string
		others string // pods before it, each of a container
		spec   string
		near   topology.Mask
		want   string // or the error
	}{
		{"the first node", "", "a=2", 0, "a=0:2"},
		{"the near one", "", "a=2", topology.MaskOf(1), "a=1:2"},
		{"one that has enough", "3", "a=2", 0, "a=1:2"},
		{"more than the near one has", "", "a=5", topology.MaskOf(1), "a=0:4,1:1"},
		{"both are not for one that is on one", "1", "a=5", 0, "no NUMA nodes with enough memory are available"},
		{"one is not for what is on both", "5", "a=1", 0, "a=0:0,1:1"},
		{"init containers' is used again", "", "i:3 a=4", 0, "i=0:3 a=0:4"},
		{"sidecars' is not", "", "s~3 a=4", 0, "s=0:3 a=1:4"},
		{"nor that of the other containers", "", "a=3 b=2", 0, "a=0:3 b=1:2"},
		{"huge pages are apart", "", "a=4,1", 0, "a=0:1,0:4"},
		{"of the same nodes as memory", "4", "a=1,1", 0, "a=1:1,1:1"},
		{"too much", "", "a=9", 0, "no NUMA nodes with enough memory are available"},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			m := start(t, disk{}, 4, 4)
			for i, n := range strings.Fields(c.others) {
				if err := ensure(m, podOf(fmt.Sprint("other", i), "a="+n), 0); err != nil {
					t.Fatal(err)
				}
			}
			p := podOf("p", c.spec)
			got := ""
			if err := ensure(m, p, c.near); err != nil {
				got = err.Error()
			} else {
				got = shown(m, p)
			}
			if got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// TestRefused: what a pod wanted that was refused is counted, and nothing is given.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		spec             string
		requests, errors uint64
	}{
		{"a=9", 1, 1},
		{"a=2", 1, 0}, // it was too much of something else
		{"a=3 b=3 c=3 d=3", 3, 1},
		{"i:4 j:4 a=4 b=4", 4, 0}, // init containers' is used again
		{"s~4 a=4 b=4", 3, 1},
		{"a=0", 0, 0},
	} {
		m := start(t, disk{}, 4, 4)
		m.Requests, m.Errors = metrics.NewCounts("requests", ""), metrics.NewCounts("errors", "")
		p := podOf("p", c.spec)
		m.Refused(p)
		var out bytes.Buffer
		page := metrics.NewPage(&out)
		m.Requests.Show(page)
		m.Errors.Show(page)
		if err := page.Flush(); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{fmt.Sprint("\nrequests ", c.requests, "\n"), fmt.Sprint("\nerrors ", c.errors, "\n")} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: want %q in\n%s", c.spec, want, &out)
			}
		}
		if m.Ledger.Get(p.UID) != nil {
			t.Errorf("%s: it has been given something", c.spec)
		}
	}
}

func TestOnlyGuaranteedPods(t *testing.T) {
	m := start(t, disk{}, 4, 4)
	p := podOf("p", "a=2")
	p.Status.QOSClass = corev1.PodQOSBurstable
	if err := ensure(m, p, 0); err != nil || m.Nodes("p", "a") != 0 || m.Hints(p, &p.Spec.Containers[0]) != nil {
		t.Errorf("%v, on %s", err, m.Nodes("p", "a"))
	}
}

func TestHints(t *testing.T) {
	m := start(t, disk{}, 4, 4)
	read := func(h topology.Hints) string {
		var out []string
		for _, one := range h["memory"] {
			out = append(out, one.Nodes.String()+map[bool]string{true: "+"}[one.Preferred])
		}
		return strings.Join(out, " ")
	}
	hints := func(spec string) string {
		p := podOf("p", spec)
		return read(m.Hints(p, &p.Spec.Containers[0]))
	}
	if got := hints("a=2"); got != "0+ 1+ 0,1" {
		t.Error(got)
	}
	if err := ensure(m, podOf("other", "a=3"), 0); err != nil {
		t.Fatal(err)
	}
	if got := hints("a=2"); got != "1+" { // both would mix with the other pod's
		t.Error(got)
	}
	if got := hints("a=5"); got != "" {
		t.Error(got)
	}
	if got := read(m.PodHints(podOf("q", "i:4 s~1 a=2 b=1"))); got != "1+" {
		t.Error(got)
	}
}

func TestRecords(t *testing.T) {
	d := disk{}
	m := start(t, d, 4, 4)
	p := podOf("p", "a=3")
	if err := ensure(m, p, 0); err != nil {
		t.Fatal(err)
	}
	m = start(t, d, 4, 4)
	if shown(m, p) != "a=0:3" || len(m.Ledger.Pods()) != 1 {
		t.Errorf("after a restart: %s", shown(m, p))
	}
	q := podOf("q", "a=8")
	states := map[types.UID][2]bool{"p": {true, false}}
	m.Ledger.Ending = func(uid types.UID) (bool, bool) { return states[uid][0], states[uid][1] }
	var waiting *ledger.Waiting
	if err := ensure(m, q, 0); !errors.As(err, &waiting) {
		t.Errorf("while the other one ends: %v", err)
	}
	states["p"] = [2]bool{true, true}
	if err := ensure(m, q, 0); err != nil || shown(m, q) != "a=0:4,1:4" {
		t.Errorf("it has ended: %s, %v", shown(m, q), err)
	}
	if _, err := m.Ledger.Release("q"); err != nil || len(d) != 0 {
		t.Errorf("%v, %v", d, err)
	}
	if err := errors.Join(
		d.PutNow("r", &Pod{Pod: ledger.Pod{UID: "r"}, Containers: []Container{{Name: "a", Blocks: []Block{
			{Kind: "memory", Nodes: topology.MaskOf(2), On: map[int]int64{2: gi}}}}}}),
		d.PutNow("s", &Pod{Pod: ledger.Pod{UID: "other"}}),
	); err != nil {
		t.Fatal(err)
	}
	if m = start(t, d, 4, 4); len(d) != 0 || len(m.Ledger.Pods()) != 0 {
		t.Errorf("records that cannot be true: %v", d)
	}
}

func TestAmounts(t *testing.T) {
	m := &topology.Machine{Nodes: map[int]topology.Node{
		0: {MemoryBytes: 4 * gi, HugePages: map[int64]int64{2 << 20: gi}}, 1: {MemoryBytes: gi}}}
	list := corev1.ResourceList{"memory": resource.MustParse("2Gi"), "hugepages-2Mi": resource.MustParse("512Mi")}
	var got []string
	Allocatable(m, Spread(m, list)).Each(func(node int, kind corev1.ResourceName, bytes int64) {
		got = append(got, fmt.Sprint(node, " ", kind, " ", bytes>>20))
	})
	if want := "0 hugepages-2Mi 512, 0 memory 1536, 1 memory 512"; strings.Join(got, ", ") != want {
		t.Errorf("%v, want %s", got, want)
	}
	if out := Allocatable(m, Amounts{1: {"memory": 2 * gi}}); out[1]["memory"] != 0 {
		t.Errorf("more is reserved than there is: %d", out[1]["memory"])
	}
}
