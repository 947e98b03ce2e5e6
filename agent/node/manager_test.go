package node

import (
	"context"
	"errors"
	"log/slog"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/agent/problem"
)

// TestHeard: the status is looked at again when somebody else changed what is
// ours, and when the Node is gone.
func TestHeard(t *testing.T) {
	ready := func(reason string) *corev1.Node {
		n := withRanges("10.1.0.0/24")
		n.Status.Conditions = []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: reason}}
		return n
	}
	labelled := ready("KubeletReady")
	labelled.Labels = map[string]string{"a": "b"}
	changed := ready("KubeletReady")
	changed.Spec.PodCIDR = "10.2.0.0/24"
	for name, tt := range map[string]struct {
		hear  func(nodeStore) error
		poked bool
	}{
		"as it was":           {func(h nodeStore) error { return h.Update(ready("KubeletReady")) }, false},
		"a label":             {func(h nodeStore) error { return h.Update(labelled) }, false},
		"a condition of ours": {func(h nodeStore) error { return h.Update(ready("NodeStatusUnknown")) }, true},
		"a pod range":         {func(h nodeStore) error { return h.Update(changed) }, true},
		"deleted":             {func(h nodeStore) error { return h.Delete(ready("")) }, true},
		"listed":              {func(h nodeStore) error { return h.Replace([]any{ready("KubeletReady")}, "") }, false},
		"not listed":          {func(h nodeStore) error { return h.Replace(nil, "") }, true},
	} {
		m := &Manager{node: ready("KubeletReady"), Seen: func(*corev1.Node) {}}
		if err := tt.hear(nodeStore{m}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		select {
		case <-m.waker():
			if !tt.poked {
				t.Errorf("%s: the status is looked at", name)
			}
		default:
			if tt.poked {
				t.Errorf("%s: the status is not looked at", name)
			}
		}
	}
}

// A Node that somebody deletes is there again at once, though nothing of it changed.
func TestNodeDeleted(t *testing.T) {
	ctx := t.Context()
	client := fake.NewClientset()
	m := &Manager{
		Client: client, Name: "n", Log: slog.New(slog.DiscardHandler),
		Input: func(context.Context) Input { return Input{Name: "n"} },
		Seen:  func(*corev1.Node) {},
		Event: func(string, string, string) {},
	}
	if err := m.register(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := m.update(ctx, true); err != nil {
		t.Fatal(err)
	}
	if err := client.CoreV1().Nodes().Delete(ctx, "n", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := (nodeStore{m}).Delete(m.Node()); err != nil {
		t.Fatal(err)
	}
	if _, err := m.update(ctx, false); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Nodes().Get(ctx, "n", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if m.isDeleted() {
		t.Error("the Node still counts as deleted")
	}
}

// TestLateAnswer: the watch shows what others wrote after a request before the answer
// to that comes.
func TestLateAnswer(t *testing.T) {
	version := func(v string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{UID: "1", ResourceVersion: v}}
	}
	var seen []string
	m := &Manager{Seen: func(n *corev1.Node) { seen = append(seen, n.ResourceVersion) }}
	m.written(version("9"))
	m.set(version("11"))
	m.written(version("10"))
	m.written(version("12"))
	m.set(version("3")) // of a store that was restored
	if want := []string{"9", "11", "12", "3"}; !slices.Equal(seen, want) || m.Node().ResourceVersion != "3" {
		t.Errorf("seen %q, want %q", seen, want)
	}
}

// Events tell of changes of what is the node's own to say.
func TestEventsOfConditions(t *testing.T) {
	of := func(conditions ...corev1.NodeCondition) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{Conditions: conditions}}
	}
	ready := func(s corev1.ConditionStatus) corev1.NodeCondition {
		return corev1.NodeCondition{Type: corev1.NodeReady, Status: s, Reason: "x"}
	}
	deadlock := func(s corev1.ConditionStatus, reason string) corev1.NodeCondition {
		return corev1.NodeCondition{Type: problem.KernelDeadlock, Status: s, Reason: reason, Message: "m"}
	}
	const yes, no = corev1.ConditionTrue, corev1.ConditionFalse
	for _, c := range []struct {
		old, now *corev1.Node
		want     string
	}{
		{of(), of(ready(yes)), "Normal NodeReady Node n status is now: NodeReady;"},
		{of(ready(yes)), of(ready(yes)), ""},
		{of(ready(yes)), of(ready(no)), "Normal NodeNotReady Node n status is now: NodeNotReady;"},
		{of(), of(deadlock(yes, "TaskHung")), "Warning TaskHung KernelDeadlock is now True: m;"},
		{of(deadlock(yes, "TaskHung")), of(deadlock(yes, "CPULockup")), ""},
		{of(deadlock(yes, "TaskHung")), of(deadlock(no, "NoTaskHung")), "Normal NoTaskHung KernelDeadlock is now False: m;"},
		{of(), of(deadlock(yes, "DockerHung")), ""},
	} {
		got := ""
		m := &Manager{Name: "n", Event: func(kind, reason, message string) {
			got += kind + " " + reason + " " + message + ";"
		}}
		if m.tell(c.old, c.now); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// The Node of a machine that was made anew does not advertise what the old one had, once:
// what others advertise later is theirs.
func TestNodeMadeAnew(t *testing.T) {
	const dev = "vendor.example/dev"
	advertise := func(n *corev1.Node, q string) *corev1.Node {
		n = n.DeepCopy()
		n.Status.Capacity = corev1.ResourceList{dev: resource.MustParse(q)}
		n.Status.Allocatable = n.Status.Capacity
		return n
	}
	for anew, want := range map[bool]string{true: "0", false: "3"} {
		old := advertise(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, "3")
		m := &Manager{
			Client: fake.NewClientset(old),
			Name:   "n",
			Input:  func(context.Context) Input { return Input{Name: "n"} },
			Anew:   anew,
			Seen:   func(*corev1.Node) {},
			Event:  func(string, string, string) {},
		}
		if err := m.register(t.Context()); err != nil {
			t.Fatal(err)
		}
		shows := func(want string) {
			t.Helper()
			if _, err := m.update(t.Context(), false); err != nil {
				t.Fatal(err)
			}
			capacity, allocatable := m.Node().Status.Capacity[dev], m.Node().Status.Allocatable[dev]
			if capacity.String() != want || allocatable.String() != want {
				t.Errorf("anew %t: %s of %s, want %s", anew, allocatable.String(), capacity.String(), want)
			}
		}
		shows(want)
		n, err := m.Client.CoreV1().Nodes().UpdateStatus(t.Context(), advertise(m.Node(), "5"), metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		m.set(n)
		shows("5")
	}
}

// A node says what system and architecture it is of, whatever others say of it; labels that are
// theirs stay.
func TestMislabelled(t *testing.T) {
	m := &Manager{
		Client: fake.NewClientset(),
		Name:   "n",
		Input:  func(context.Context) Input { return Input{Name: "n"} },
		Seen:   func(*corev1.Node) {},
		Event:  func(string, string, string) {},
	}
	if err := m.register(t.Context()); err != nil {
		t.Fatal(err)
	}
	n := m.Node().DeepCopy()
	n.Labels[corev1.LabelArchStable], n.Labels["theirs"] = "dummy", "yes"
	delete(n.Labels, corev1.LabelOSStable)
	n, err := m.Client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m.set(n)
	if _, err := m.update(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	n, err = m.Client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n.Labels[corev1.LabelArchStable] != goruntime.GOARCH || n.Labels[corev1.LabelOSStable] != goruntime.GOOS ||
		n.Labels["theirs"] != "yes" {
		t.Errorf("labels %v", n.Labels)
	}
}

// NODE-6: a node that is not to make its Node waits for it, keeps it, and does not make it
// again when it was deleted.
func TestNodeMadeByOthers(t *testing.T) {
	m := &Manager{
		Client: fake.NewClientset(), Name: "n", MadeByOthers: true,
		Input: func(context.Context) Input { return Input{Name: "n", Labels: map[string]string{"own": "yes"}} },
		Seen:  func(*corev1.Node) {},
		Event: func(string, string, string) {},
	}
	all := m.Client.CoreV1().Nodes()
	waits := func(err error) {
		t.Helper()
		list, lerr := all.List(t.Context(), metav1.ListOptions{})
		if !errors.Is(err, errNoNode) || lerr != nil || len(list.Items) > 0 {
			t.Errorf("without a Node: %v, %v, %d are there", err, lerr, len(list.Items))
		}
	}
	waits(m.register(t.Context()))
	theirs := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	if _, err := all.Create(t.Context(), theirs, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := m.register(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := m.update(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	n, err := all.Get(t.Context(), "n", metav1.GetOptions{})
	if err != nil || n.Labels["own"] != "yes" || len(n.Status.Conditions) == 0 {
		t.Errorf("the Node that somebody made: %v, %+v", err, n)
	}
	if err := all.Delete(t.Context(), "n", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = m.update(t.Context(), true)
	waits(err)
}

// NODE-20: addresses are replaced as a whole. A merge by their type, as the API's types have
// it, would lose one of two of a type.
func TestAddressesOfNode(t *testing.T) {
	m := &Manager{
		Client: fake.NewClientset(),
		Name:   "n",
		Seen:   func(*corev1.Node) {},
		Event:  func(string, string, string) {},
	}
	for i, c := range []struct{ internal, external, want string }{
		{"192.0.2.1", "", "InternalIP=192.0.2.1 Hostname=n"},
		{"192.0.2.1", "198.51.100.1 198.51.100.2",
			"InternalIP=192.0.2.1 ExternalIP=198.51.100.1 ExternalIP=198.51.100.2 Hostname=n"},
		{"192.0.2.1", "198.51.100.2 198.51.100.3",
			"InternalIP=192.0.2.1 ExternalIP=198.51.100.2 ExternalIP=198.51.100.3 Hostname=n"},
		{"192.0.2.7", "198.51.100.3", "InternalIP=192.0.2.7 ExternalIP=198.51.100.3 Hostname=n"},
		{"192.0.2.7", "", "InternalIP=192.0.2.7 Hostname=n"},
	} {
		m.Input = func(context.Context) Input {
			return Input{Name: "n", Facts: host.Facts{IPs: strings.Fields(c.internal)},
				ExternalIPs: strings.Fields(c.external)}
		}
		var err error
		if i == 0 {
			err = m.register(t.Context())
		} else {
			_, err = m.update(t.Context(), false)
		}
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, a := range m.Node().Status.Addresses {
			got = append(got, string(a.Type)+"="+a.Address)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
