package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/shoal-project/shoal/agent/problem"
)

// Manager keeps the Node object and its Lease.
type Manager struct {
	Client kubernetes.Interface
	Name   string
	// MadeByOthers: somebody else makes the Node (NODE-6).
	MadeByOthers bool
	// Input returns the newest facts; Images may be left out of it.
	Input func(ctx context.Context) Input
	// LeaseSeconds is how long the Lease holds; it is renewed four times as
	// often.
	LeaseSeconds int32
	// Report is how often the status is sent although nothing changed.
	Report time.Duration
	// Fence is told of renewals, nil: nothing depends on them.
	Fence Fence
	// Anew: the machine does not remember to have been this node. Extended resources that
	// its Node has from before are set to 0, once.
	Anew bool
	// Seen takes every version of the Node that the API has.
	Seen func(n *corev1.Node)
	// Event tells of the node.
	Event func(kind, reason, message string)
	Log   *slog.Logger

	// order: versions of the Node are taken one after the other, and Seen is told in
	// that order.
	order sync.Mutex
	mu    sync.Mutex
	node  *corev1.Node
	// deleted: the watch has shown that the API has this Node no more.
	deleted bool
	wake    chan struct{}
	once    sync.Once
}

func (m *Manager) waker() chan struct{} {
	m.once.Do(func() { m.wake = make(chan struct{}, 1) })
	return m.wake
}

// Poke makes the status be looked at now.
func (m *Manager) Poke() {
	select {
	case m.waker() <- struct{}{}:
	default:
	}
}

// Node is the Node as the API has it, nil before it was heard.
func (m *Manager) Node() *corev1.Node {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.node
}

// UID is the Node's, "" before it was heard.
func (m *Manager) UID() types.UID {
	if n := m.Node(); n != nil {
		return n.UID
	}
	return ""
}

func (m *Manager) isDeleted() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.deleted
}

// set takes the Node as the watch shows it, which may be older than before: so it is
// after a store was restored.
func (m *Manager) set(n *corev1.Node) {
	m.order.Lock()
	defer m.order.Unlock()
	m.take(n)
}

// written takes the Node as a request left it, unless the watch has shown a newer one
// before the answer came: what others wrote meanwhile would be unknown until the next
// change, as that a volume is attached.
func (m *Manager) written(n *corev1.Node) {
	m.order.Lock()
	defer m.order.Unlock()
	if now := m.Node(); now != nil && now.UID == n.UID {
		order, err := resourceversion.CompareResourceVersion(n.ResourceVersion, now.ResourceVersion)
		if err == nil && order < 0 {
			return
		}
	}
	m.take(n)
}

func (m *Manager) take(n *corev1.Node) {
	n.ManagedFields = nil
	m.mu.Lock()
	m.node, m.deleted = n, false
	m.mu.Unlock()
	m.Seen(n)
}

// Run registers the node and keeps it up to date until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	wake := m.waker()
	if err := m.patiently(ctx, "register the node", m.register); err != nil {
		return nil // ctx ended
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { m.follow(ctx) })
	wg.Go(func() { m.lease(ctx) })
	check := time.Duration(m.LeaseSeconds) * time.Second / 4
	sent := time.Now()
	for {
		due := time.Since(sent) >= m.Report
		err := m.patiently(ctx, "write the node's status", func(ctx context.Context) error {
			wrote, err := m.update(ctx, due)
			if wrote {
				sent = time.Now()
			}
			return err
		})
		if err != nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		case <-time.After(check): // pressure and runtime have no events of their own
		}
	}
}

func (m *Manager) patiently(ctx context.Context, what string, f func(context.Context) error) error {
	return patiently(ctx, m.Log, what, f)
}

// patiently repeats f until it succeeds; the error is that of ctx.
func patiently(ctx context.Context, log *slog.Logger, what string, f func(context.Context) error) error {
	pause := 50 * time.Millisecond
	told := false
	for began := time.Now(); ; {
		err := f(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		// A coordinator that starts beside us takes a moment.
		if !told && time.Since(began) > 5*time.Second {
			told = true
			log.Warn("cannot "+what+", trying on", "err", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		pause = min(pause*3/2, 5*time.Second)
	}
}

// errNoNode is why a node that may not make its Node waits.
var errNoNode = errors.New("there is no such Node, and registerNode is false: make it, or have the agent do so")

// register makes sure that the Node exists with its labels.
func (m *Manager) register(ctx context.Context) error {
	in := m.Input(ctx)
	old, err := m.Client.CoreV1().Nodes().Get(ctx, m.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && m.MadeByOthers {
		return fmt.Errorf("node %s: %w", m.Name, errNoNode)
	}
	if apierrors.IsNotFound(err) {
		n, err := m.Client.CoreV1().Nodes().Create(ctx, Build(nil, in), metav1.CreateOptions{})
		if err != nil {
			return err
		}
		m.written(n)
		return nil
	}
	if err != nil {
		return err
	}
	want := Build(old, in)
	want.Status = old.Status
	if !equality.Semantic.DeepEqual(old, want) {
		body, err := patch(old, want)
		if err != nil {
			return err
		}
		if old, err = m.Client.CoreV1().Nodes().Patch(ctx, m.Name, types.StrategicMergePatchType, body,
			metav1.PatchOptions{}); err != nil {
			return err
		}
	}
	m.written(old)
	return nil
}

// update writes the status when it changed or is due.
func (m *Manager) update(ctx context.Context, due bool) (bool, error) {
	if m.isDeleted() {
		return false, m.register(ctx)
	}
	old := m.Node()
	in := m.Input(ctx)
	in.Anew = m.Anew
	want := Build(old, in)
	if !maps.Equal(old.Annotations, want.Annotations) || mislabelled(old, want) {
		return false, m.register(ctx)
	}
	if !due && equality.Semantic.DeepEqual(strip(old.Status), strip(want.Status)) {
		m.Anew = false
		return false, nil
	}
	want.ObjectMeta, want.Spec = old.ObjectMeta, old.Spec
	body, err := patch(old, want)
	if err != nil {
		return false, err
	}
	n, err := m.Client.CoreV1().Nodes().PatchStatus(ctx, m.Name, body)
	if apierrors.IsNotFound(err) {
		// Somebody deleted it: say again that we are here.
		return false, m.register(ctx)
	}
	if err != nil {
		return false, err
	}
	m.Anew = false
	m.tell(old, n)
	m.written(n)
	return true, nil
}

// mislabelled tells whether somebody says that the machine is of another system or
// architecture than it is, by which pods come that cannot run on it (upstream's updateNode).
func mislabelled(old, want *corev1.Node) bool {
	return slices.ContainsFunc([]string{corev1.LabelOSStable, corev1.LabelArchStable}, func(label string) bool {
		return old.Labels[label] != want.Labels[label]
	})
}

// tell writes events about transitions.
func (m *Manager) tell(old, now *corev1.Node) {
	before := map[corev1.NodeConditionType]corev1.ConditionStatus{}
	for _, c := range old.Status.Conditions {
		before[c.Type] = c.Status
	}
	for _, c := range now.Status.Conditions {
		holds := c.Status == corev1.ConditionTrue
		switch {
		case before[c.Type] == c.Status:
		case c.Type == corev1.NodeReady:
			reason := "NodeNotReady"
			if holds {
				reason = "NodeReady"
			}
			m.Event(corev1.EventTypeNormal, reason, fmt.Sprintf("Node %s status is now: %s", m.Name, reason))
		case problem.Mine(c):
			kind := corev1.EventTypeNormal
			if holds {
				kind = corev1.EventTypeWarning
			}
			m.Event(kind, c.Reason, fmt.Sprintf("%s is now %s: %s", c.Type, c.Status, c.Message))
		}
	}
}

// patch is the change from old to want. Addresses would be merged by their type, of which
// there may be several: they are replaced as a whole.
func patch(old, want *corev1.Node) ([]byte, error) {
	addresses := want.Status.Addresses
	moved := !equality.Semantic.DeepEqual(old.Status.Addresses, addresses)
	if moved {
		same := *want
		same.Status.Addresses = old.Status.Addresses
		want = &same
	}
	a, err := json.Marshal(old)
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(want)
	if err != nil {
		return nil, err
	}
	body, err := strategicpatch.CreateTwoWayMergePatch(a, b, corev1.Node{})
	if err != nil || !moved {
		return body, err
	}
	return replaceAddresses(body, addresses)
}

// replaceAddresses adds to a patch that these are all addresses.
func replaceAddresses(body []byte, addresses []corev1.NodeAddress) ([]byte, error) {
	var change map[string]any
	if err := json.Unmarshal(body, &change); err != nil {
		return nil, err
	}
	list := []any{map[string]any{"$patch": "replace"}}
	for _, a := range addresses {
		list = append(list, a)
	}
	status, _ := change["status"].(map[string]any)
	if status == nil {
		status = map[string]any{}
		change["status"] = status
	}
	status["addresses"] = list
	return json.Marshal(change)
}

// follow watches the own Node: its pod network, labels and taints.
func (m *Manager) follow(ctx context.Context) {
	only := fields.OneTermEqualSelector("metadata.name", m.Name).String()
	nodes := m.Client.CoreV1().Nodes()
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = only
			return nodes.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = only
			return nodes.Watch(ctx, o)
		},
	}
	own := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, m.Client),
		&corev1.Node{}, nodeStore{m},
		cache.ReflectorOptions{Name: "this node", Backoff: &wait.Backoff{
			Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 7, Cap: 5 * time.Second,
		}})
	own.RunWithContext(ctx)
}

// nodeStore takes what the API tells of the Node; it implements cache.ReflectorStore.
type nodeStore struct{ *Manager }

func (h nodeStore) Add(obj any) error { return h.Update(obj) }
func (h nodeStore) Resync() error     { return nil }

// Delete has the Node registered again at once: pods of a node that is not there are
// deleted after 40 seconds.
func (h nodeStore) Delete(any) error {
	h.mu.Lock()
	h.deleted = true
	h.mu.Unlock()
	h.Poke()
	return nil
}

func (h nodeStore) Update(obj any) error {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return fmt.Errorf("unexpected object %T", obj)
	}
	old := h.Node()
	h.set(n)
	if old == nil || old.Spec.PodCIDR != n.Spec.PodCIDR || len(old.Spec.PodCIDRs) != len(n.Spec.PodCIDRs) ||
		stale(old, n) {
		h.Poke()
	}
	return nil
}

func (h nodeStore) Replace(list []any, _ string) error {
	if len(list) == 0 {
		return h.Delete(nil)
	}
	return h.Update(list[0])
}

// stale tells whether somebody else changed the conditions that are ours, or
// a capacity that allocatable must follow.
func stale(old, n *corev1.Node) bool {
	return !equality.Semantic.DeepEqual(old.Status.Capacity, n.Status.Capacity) ||
		!equality.Semantic.DeepEqual(strip(old.Status).Conditions, strip(n.Status).Conditions)
}
