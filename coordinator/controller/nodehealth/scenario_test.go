package nodehealth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/coordinator/controller"
	"github.com/shoal-project/shoal/tests/transcript"
)

// TestScenarios plays the files of testdata. A line "> command" is done; the
// lines up to the next one are what it changes in the API, each with the time
// since the beginning: a node's Ready condition, whether its pod is ready, and
// its taints. The commands:
//
//	nodes NAME...            ready nodes come, each an agent with a pod, its zone the letter that its name begins with
//	unposted NAME...         nodes come whose agents post no status
//	gossip STATE NAME...     is the members' state from now on
//	lease stops|goes NAME... the agent renews its Lease every 10 s, or does not
//	post STATUS NAME...      the agent posts its status
//	lead gossip|leases       another coordinator takes over; with leases it has no gossip
//	wait TIME
func TestScenarios(t *testing.T) {
	transcript.Files(t, "testdata/*.txt", func(t *testing.T, text string) (got string) {
		synctest.Test(t, func(t *testing.T) { got = play(t, text) })
		return got
	})
}

// play does the commands of a script and returns it with what they changed.
func play(t *testing.T, script string) string {
	f := &rig{t: t, client: fake.NewClientset(), begin: time.Now(), renews: map[string]bool{}, shown: map[string]string{}}
	f.members.changed = make(chan struct{}, 1)
	f.refuseStaleWrites()
	f.lead(&f.members)
	defer func() { f.resign() }()
	return transcript.Play(script, func(command string) string { return f.do(strings.Fields(command)) })
}

// rig is the controller on an API that only stores, and refuses writes of what
// is not the newest version of a node.
type rig struct {
	t       *testing.T
	client  *fake.Clientset
	members members
	begin   time.Time
	renews  map[string]bool   // node -> its agent renews the Lease
	shown   map[string]string // node -> its last line
	resign  func()
}

func (f *rig) refuseStaleWrites() {
	store := clienttesting.ObjectReaction(f.client.Tracker())
	next := func(name, version string) (string, error) {
		obj, err := f.client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("nodes"), "", name)
		if err != nil {
			return "", err
		}
		stored := obj.(*corev1.Node).ResourceVersion
		if stored != version {
			return "", apierrors.NewConflict(corev1.Resource("nodes"), name, errors.New("it has changed"))
		}
		return stored + "I", nil
	}
	f.client.PrependReactor("update", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		update := a.(clienttesting.UpdateActionImpl)
		n := update.Object.(*corev1.Node)
		version, err := next(n.Name, n.ResourceVersion)
		if n.ResourceVersion = version; err != nil {
			return true, nil, err
		}
		return store(update)
	})
	f.client.PrependReactor("patch", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		patch := a.(clienttesting.PatchActionImpl)
		var n map[string]map[string]any
		err := json.Unmarshal(patch.Patch, &n)
		if err == nil {
			n["metadata"]["resourceVersion"], err = next(patch.Name, n["metadata"]["resourceVersion"].(string))
		}
		if err == nil {
			patch.Patch, err = json.Marshal(n)
		}
		if err != nil {
			return true, nil, err
		}
		return store(patch)
	})
}

// lead starts a term of leadership.
func (f *rig) lead(members Members) {
	ctx, cancel := context.WithCancel(f.t.Context())
	factory := informers.NewSharedInformerFactory(f.client, 0)
	loop, err := New(controller.Env{
		Client:    f.client,
		Informers: factory,
		Recorder:  func(string) record.EventRecorder { return &record.FakeRecorder{} },
		Log:       slog.New(slog.DiscardHandler),
	}, members)
	if err != nil {
		f.t.Fatal(err)
	}
	factory.Start(ctx.Done())
	var running sync.WaitGroup
	running.Go(func() {
		if err := loop.Run(ctx); err != nil {
			f.t.Error(err)
		}
	})
	f.resign = func() { cancel(); running.Wait(); factory.Shutdown() }
}

func (f *rig) do(command []string) string {
	names := command[1:]
	switch command[0] {
	case "nodes", "unposted":
		for _, name := range names {
			f.add(name, command[0] == "nodes")
		}
		f.gossip("alive", names)
	case "gossip":
		f.gossip(gossip.State(names[0]), names[1:])
	case "lease":
		for _, name := range names[1:] {
			f.renews[name] = names[0] == "goes"
		}
	case "post":
		for _, name := range names[1:] {
			f.post(name, corev1.ConditionStatus(names[0]))
		}
	case "lead":
		f.resign()
		if names[0] == "leases" {
			f.lead(nil)
		} else {
			f.lead(&f.members)
		}
	case "wait":
		return f.wait(names[0])
	default:
		f.t.Fatalf("command %q", command)
	}
	return f.changes()
}

// wait lets time pass, a second at a time.
func (f *rig) wait(text string) string {
	d, err := time.ParseDuration(text)
	if err != nil {
		f.t.Fatal(err)
	}
	var out strings.Builder
	for range int(d / time.Second) {
		time.Sleep(time.Second)
		if time.Since(f.begin)%(10*time.Second) == 0 {
			f.renew()
		}
		out.WriteString(f.changes())
	}
	return out.String()
}

func (f *rig) add(name string, posted bool) {
	ctx := f.t.Context()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID(name), CreationTimestamp: metav1.Now(),
		Labels: map[string]string{corev1.LabelTopologyZone: name[:1]},
	}}
	if posted {
		n.Status.Conditions = postedConditions()
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.PodSpec{NodeName: name}}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: corev1.NamespaceNodeLease}}
	_, err1 := f.client.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
	_, err2 := f.client.CoordinationV1().Leases(l.Namespace).Create(ctx, l, metav1.CreateOptions{})
	_, err3 := f.client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
	f.ok(err1, err2, err3)
	f.renews[name] = true
}

func postedConditions() (out []corev1.NodeCondition) {
	for _, c := range heartbeatConditions {
		status := corev1.ConditionFalse
		if c == corev1.NodeReady {
			status = corev1.ConditionTrue
		}
		out = append(out,
			corev1.NodeCondition{Type: c, Status: status, Reason: "Posted", LastHeartbeatTime: metav1.Now()})
	}
	return out
}

func (f *rig) renew() {
	for name, does := range f.renews {
		if !does {
			continue
		}
		at := metav1.NowMicro()
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: corev1.NamespaceNodeLease},
			Spec: coordinationv1.LeaseSpec{RenewTime: &at}}
		_, err := f.client.CoordinationV1().Leases(l.Namespace).Update(f.t.Context(), l, metav1.UpdateOptions{})
		f.ok(err)
	}
}

func (f *rig) post(name string, status corev1.ConditionStatus) {
	n, err := f.client.CoreV1().Nodes().Get(f.t.Context(), name, metav1.GetOptions{})
	f.ok(err)
	ready := controller.NodeCondition(n, corev1.NodeReady)
	ready.Status, ready.Reason, ready.LastHeartbeatTime = status, "Posted", metav1.Now()
	_, err = f.client.CoreV1().Nodes().UpdateStatus(f.t.Context(), n, metav1.UpdateOptions{})
	f.ok(err)
}

func (f *rig) gossip(state gossip.State, names []string) {
	f.members.mu.Lock()
	for _, name := range names {
		i := slices.IndexFunc(f.members.list, func(m gossip.Member) bool { return m.Name == name })
		if i < 0 {
			i = len(f.members.list)
			f.members.list = append(f.members.list, gossip.Member{Name: name, Meta: gossip.Meta{Role: gossip.RoleAgent}})
		}
		f.members.list[i].State, f.members.list[i].Since = state, time.Now()
	}
	f.members.mu.Unlock()
	select {
	case f.members.changed <- struct{}{}:
	default:
	}
}

func (f *rig) ok(errs ...error) {
	f.t.Helper()
	for _, err := range errs {
		if err != nil {
			f.t.Fatal(err)
		}
	}
}

// changes returns a line for each node that is not as it was shown last.
func (f *rig) changes() string {
	synctest.Wait()
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(f.renews)) {
		if line := f.line(name); f.shown[name] != line {
			f.shown[name] = line
			fmt.Fprintf(&out, "%s %s: %s\n", time.Since(f.begin), name, line)
		}
	}
	return out.String()
}

func (f *rig) line(name string) string {
	n, err1 := f.client.CoreV1().Nodes().Get(f.t.Context(), name, metav1.GetOptions{})
	p, err2 := f.client.CoreV1().Pods("default").Get(f.t.Context(), name, metav1.GetOptions{})
	f.ok(err1, err2)
	words := []string{string(controller.NodeReadyStatus(n)), "pod ready"}
	if !controller.PodReady(p) {
		words[1] = "pod not ready"
	}
	var taints []string
	for _, t := range n.Spec.Taints {
		taints = append(taints, strings.TrimPrefix(t.Key, "node.kubernetes.io/")+":"+string(t.Effect))
	}
	slices.Sort(taints)
	return strings.Join(append(words, taints...), ", ")
}

type members struct {
	mu      sync.Mutex
	list    []gossip.Member
	changed chan struct{}
}

func (m *members) Members() []gossip.Member {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.list)
}

func (m *members) Changed() <-chan struct{} { return m.changed }
