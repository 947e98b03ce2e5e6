package pod

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	criapi "k8s.io/cri-api/pkg/apis"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/metrics"
	"github.com/shoal-project/shoal/agent/pod/launch"
	"github.com/shoal-project/shoal/agent/probe"
	"github.com/shoal-project/shoal/agent/record"
)

// Step is one thing that must hold before containers run. Ensure is repeatable
// and is called again after every failure; Release undoes it, is safe alone and
// is called in reverse order.
type Step struct {
	Name    string
	Ensure  func(ctx context.Context, s *Setting) error
	Release func(ctx context.Context, s *Setting) error
}

// Setting is what steps work on.
type Setting struct {
	Pod *corev1.Pod
	// Sandbox is the sandbox that was, Attempt the number of the next.
	Sandbox string
	Attempt uint32
	// Manifest: the pod is one of a manifest; nobody makes another in its place.
	Manifest bool
}

// Fault is a step's error with the reason of its event.
type Fault struct {
	Reason  string
	Message string
	// Rejects: the pod fails, and is not tried again.
	Rejects bool
}

func (f *Fault) Error() string { return f.Message }

// Recorder writes events about a pod, or one container of it when container
// is not empty.
type Recorder interface {
	Event(p *corev1.Pod, container, kind, reason, message string)
}

// Records keeps pod records over restarts.
type Records interface {
	Put(key string, r *record.Pod) error
	Delete(key string) error
}

// Prober runs the probes of running containers; results come to
// Manager.Probed.
type Prober interface {
	Set(uid types.UID, targets []probe.Target)
}

// Reporter tells the API of pods; it is the only writer of their status.
type Reporter interface {
	// Report takes the newest facts and returns the status that they make,
	// at once.
	Report(p *corev1.Pod, r *record.Pod, o *record.Observed) corev1.PodStatus
	// Finish sends what is left to tell, then deletes the API object.
	Finish(ctx context.Context, p *corev1.Pod) error
	// Forget drops what is kept of a pod.
	Forget(uid types.UID)
}

// Spans tells when work begins and, by the function that it returns, when it ends.
// What is done with the context belongs to the work.
type Spans interface {
	// Pass is a look at a pod.
	Pass(ctx context.Context, p *corev1.Pod, operation string) (context.Context, func())
	// Job is what runs beside the worker, for a container or, without one, the pod.
	Job(ctx context.Context, kind, container string) (context.Context, func())
}

// Manager runs all pods of the node.
type Manager struct {
	Host    *launch.Host
	Runtime criapi.RuntimeService
	Images  criapi.ImageManagerService
	// PullProgress tells how far the pull of an image is, "" when it is not known; nil: never.
	PullProgress func(image string) string
	// MaxPulls is how many images are pulled at one time; 0: the runtime sees to it.
	MaxPulls int
	// Access tells which pods may use an image that is there; nil: all.
	Access *Access
	// NodeLogins are the node's own logins at an image's registry; nil: there are none. An
	// error tells that some are missing.
	NodeLogins func(ctx context.Context, image string) ([]*criv1.AuthConfig, error)

	Steps   []Step
	Volumes Volumes
	// Devices are the CDI names of what drivers have prepared for a container that
	// asks for resource claims.
	Devices func(p *corev1.Pod, c *corev1.Container) ([]string, error)
	// Plugged is what a container gets with the devices that plugins have allocated to
	// it, nil for nothing; it is asked before each start. nil itself: there are none.
	Plugged func(ctx context.Context, p *corev1.Pod, c *corev1.Container) (*criv1.ContainerConfig, error)
	// Pinned is what of the machine a container is kept on, Created hears of each that was
	// made with it, before it starts; nil: nothing.
	Pinned  func(p *corev1.Pod, c *corev1.Container) launch.Pinned
	Created func(ctx context.Context, p *corev1.Pod, c *corev1.Container, id string, on launch.Pinned)
	// LogsIn hears of a directory before a container writes its first log there, KeepLogs
	// gets that of a pod that is gone; nil: nobody cares, they are deleted.
	LogsIn   func(dir string)
	KeepLogs func(dir string) error
	// Fixed tells why a pod that runs with what allocated has cannot have what p has, empty if
	// it can; nil: all can.
	Fixed func(p, allocated *corev1.Pod) string
	// NoRoom hears of each pod that is refused because the node has too little left for it; nil:
	// nobody cares.
	NoRoom func(p *corev1.Pod)
	// HasPlugin tells whether plugins give the devices of a resource, and so who has
	// how many; nil: no resource's.
	HasPlugin func(corev1.ResourceName) bool
	Objects   Objects
	// Services gives all services, false while they are not known: their
	// variables belong into every container.
	Services func(context.Context) ([]*corev1.Service, bool)
	Probes   Prober
	Reporter Reporter
	Records  Records
	Events   Recorder
	// Node returns the Node object that pods are admitted against, or nil.
	Node func() *corev1.Node
	// Limit changes what the pod as a whole is limited to, may be nil.
	Limit func(p *corev1.Pod, l launch.Limits) error
	// Refuse tells why the node takes no pods at all now, nil when it does;
	// nil itself: it always does.
	Refuse func() *record.Verdict
	// Withdraw returns when nobody sends anything new to a pod that ends, whose sandbox is
	// given, and what it was asked is answered, or with ctx: then its containers are told.
	// WithdrawTime bounds it; nil: nobody waits.
	Withdraw     func(ctx context.Context, p *corev1.Pod, sandbox string)
	WithdrawTime func(p *corev1.Pod) time.Duration
	// Permit lets a container start that must not run everywhere, or tells why not now;
	// nil: all may.
	Permit func(context.Context, *corev1.Pod) error
	// Isolate returns once the network policies of a pod at these addresses are enforced:
	// no container of it runs before; nil: none are.
	Isolate func(ctx context.Context, p *corev1.Pod, ips []string) error
	// Pressure are the conditions of pressure that the node is under, which it takes
	// fewer pods in; nil: it is never under any.
	Pressure func() map[corev1.NodeConditionType]bool
	// Sysctls are those that pods may set; nil does not look at them.
	Sysctls *launch.Sysctls
	// WithoutAppArmor: the node cannot enforce its profiles, and takes no pods with one.
	WithoutAppArmor bool
	// Handler is the runtime's name of what a RuntimeClass stands for.
	Handler func(ctx context.Context, class string) (string, error)
	// Mirror returns what the API has of a pod of a manifest, nil for nothing; false
	// while the API may still be heard. nil itself: there is no API.
	Mirror func(p *corev1.Pod) (*corev1.Pod, bool)
	// ManifestGone is called when nothing of a pod of a manifest is left; nil: nobody asks.
	ManifestGone func()
	// Changed is told when a pod's facts or desires changed, may be nil.
	Changed func()
	// Relabelled brings the volumes of a pod up to date after its labels or
	// annotations changed, may be nil.
	Relabelled func(ctx context.Context, p *corev1.Pod) error
	MaxBackoff time.Duration
	// Dead bounds the ended containers that stay.
	Dead DeadLimits
	// Preempted is told of each pod that ends for a critical one, with the first resource
	// that this lacks; nil: nobody counts.
	Preempted func(resource corev1.ResourceName)
	// Spans tells of what workers do, nil: nobody listens.
	Spans Spans
	// Passes takes how long looks at pods took, Starts how long pods took to run.
	Passes, Starts *metrics.Durations
	Log            *slog.Logger

	pulls   pulls
	users   sync.Mutex // one allocation of users at a time
	growing sync.Mutex // one allocation of resources at a time
	dead    deadOfNode
	shed    shed
	ctx     context.Context
	wg      sync.WaitGroup
	mu      sync.Mutex
	workers map[types.UID]*worker
	// forgotten are the pods of manifests that were removed in this run of the agent:
	// one that comes back begins anew, whatever its mirror still tells.
	forgotten map[types.UID]bool
}

// Run follows the runtime's events until ctx ends. Containers are left
// running.
func (m *Manager) Run(ctx context.Context) error {
	events := make(chan *criv1.ContainerEventResponse, 64)
	var wg sync.WaitGroup
	defer wg.Wait()
	connected := func(criv1.RuntimeService_GetContainerEventsClient) {
		m.PokeAll() // for what happened while nobody followed
	}
	wg.Go(func() {
		pause := time.Second
		for ctx.Err() == nil {
			err := m.Runtime.GetContainerEvents(ctx, events, connected)
			if ctx.Err() != nil {
				return
			}
			m.Log.Warn("container events are interrupted, asking the runtime again", "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
			pause = min(2*pause, 30*time.Second)
		}
	})
	for {
		select {
		case <-ctx.Done():
			m.wg.Wait()
			return nil
		case e := <-events:
			if md := e.GetPodSandboxStatus().GetMetadata(); md != nil && !ownStep(e) {
				m.Poke(types.UID(md.Uid))
			}
		}
	}
}

// ownStep tells whether an event is of what a worker's own job has just done and goes on
// from. The job's end has the worker look; a look before finds nothing to decide, and writes
// a record that says no more than the runtime's own. After a restart of the agent all look.
func ownStep(e *criv1.ContainerEventResponse) bool {
	switch e.GetContainerEventType() {
	case criv1.ContainerEventType_CONTAINER_CREATED_EVENT:
		return true
	case criv1.ContainerEventType_CONTAINER_STARTED_EVENT:
		return e.GetContainerId() != "" && e.GetContainerId() == e.GetPodSandboxStatus().GetId()
	}
	return false
}

// Restore makes workers of the records of an earlier run, before anything
// else is known. ctx bounds all that workers do.
func (m *Manager) Restore(ctx context.Context, records map[string]*record.Pod) error {
	now := time.Now()
	m.mu.Lock()
	m.ctx = ctx
	m.workers = make(map[types.UID]*worker, len(records))
	for uid, r := range records {
		if r.Pod == nil || string(r.Pod.UID) != uid {
			continue
		}
		forgive(r)
		steady(r, now)
		m.workers[r.Pod.UID] = &worker{
			m:        m,
			uid:      r.Pod.UID,
			pod:      r.Pod,
			from:     r.Source,
			rec:      r,
			recorded: true,
			busy:     map[string]*job{},
		}
	}
	m.mu.Unlock()
	return m.adopt(ctx)
}

// forgive lets a pod of a manifest begin anew that the node ended for its own sake,
// as when the machine shut down: nobody makes another in its place.
func forgive(r *record.Pod) {
	if r.Source == SourceFile && r.Disrupted != nil {
		r.Ended, r.Disrupted = nil, nil
	}
}

// steady takes times of a record back that the clock has not reached: it was set back, or is
// not set yet after a start of the machine. No pause is longer than it was to be.
func steady(r *record.Pod, now time.Time) {
	noLater := func(t *time.Time, pause time.Duration) {
		if latest := now.Add(pause); t.After(latest) {
			*t = latest
		}
	}
	noLater(&r.Retry, r.Delay)
	noLater(&r.Resize.Retry, r.Resize.Delay)
	if r.Stopping != nil {
		noLater(&r.Stopping.Since, 0)
	}
	for _, c := range r.Containers {
		noLater(&c.Retry, c.Delay)
		noLater(&c.BackoffAt, 0)
	}
}

// adopt makes workers of what the runtime has and no record tells of, so that
// it is either claimed by a source or removed.
func (m *Manager) adopt(ctx context.Context) error {
	list, err := m.Runtime.ListPodSandbox(ctx, nil)
	if err != nil {
		return err
	}
	live := map[types.UID]bool{}
	m.mu.Lock()
	for _, s := range list {
		uid := types.UID(s.Labels[launch.LabelPodUID])
		if uid == "" {
			continue
		}
		live[uid] = live[uid] || s.State == criv1.PodSandboxState_SANDBOX_READY
		m.addFound(metav1.ObjectMeta{Name: s.Metadata.Name, Namespace: s.Metadata.Namespace, UID: uid})
	}
	workers := m.list()
	m.mu.Unlock()
	// What runs is taken over at once; what does not waits for its source.
	for _, w := range workers {
		if live[w.uid] {
			w.letRun()
		}
	}
	return nil
}

// Adopt makes workers of pods that are known by their volumes alone, as those of
// which only the runtime tells.
func (m *Manager) Adopt(pods []*corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range pods {
		m.addFound(p.ObjectMeta)
	}
}

// addFound makes the worker of a pod that no record tells of, unless it has one.
func (m *Manager) addFound(meta metav1.ObjectMeta) {
	if m.workers[meta.UID] != nil {
		return
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: meta.Name, Namespace: meta.Namespace, UID: meta.UID}}
	grace := int64(1)
	p.Spec.TerminationGracePeriodSeconds = &grace
	m.workers[meta.UID] = &worker{
		m:     m,
		uid:   meta.UID,
		phase: found,
		pod:   p,
		rec:   &record.Pod{Pod: p},
		busy:  map[string]*job{},
	}
}

// Update takes a pod as it shall be now.
func (m *Manager) Update(p *corev1.Pod, source string) {
	w := m.workerOf(p.UID)
	old := w.desired()
	if terminal(p) && old != nil && !terminal(old) {
		defer m.retryForRoom()
	}
	if old != nil && w.claimant() == source && asksForTheSame(old, p) {
		w.refresh(p)
		return
	}
	for !w.update(p, source) { // the last of it was removed just now
		w = m.workerOf(p.UID)
	}
}

// workerOf is the worker of a pod, a new one for a pod that has none.
func (m *Manager) workerOf(uid types.UID) *worker {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.workers[uid]
	if w == nil {
		w = &worker{m: m, uid: uid, busy: map[string]*job{}, rec: &record.Pod{}}
		m.workers[uid] = w
	}
	return w
}

func terminal(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// asksForTheSame tells whether two versions of a pod ask for the same: only what
// this node wrote itself differs.
func asksForTheSame(a, b *corev1.Pod) bool {
	if a.Generation == 0 || a.Generation != b.Generation || (a.DeletionTimestamp == nil) != (b.DeletionTimestamp == nil) {
		return false
	}
	if condition(a, corev1.PodReady) == corev1.ConditionTrue && condition(b, corev1.PodReady) != corev1.ConditionTrue {
		return false // the control plane gave this node up: look, and tell it
	}
	if x, y := a.DeletionGracePeriodSeconds, b.DeletionGracePeriodSeconds; (x == nil) != (y == nil) ||
		x != nil && *x != *y {
		return false
	}
	return maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations) &&
		a.Status.Phase == b.Status.Phase && gatesEqual(a, b)
}

// gatesEqual compares the conditions that readiness gates look at.
func gatesEqual(a, b *corev1.Pod) bool {
	for _, g := range a.Spec.ReadinessGates {
		if condition(a, g.ConditionType) != condition(b, g.ConditionType) {
			return false
		}
	}
	return true
}

func condition(p *corev1.Pod, t corev1.PodConditionType) corev1.ConditionStatus {
	for _, c := range p.Status.Conditions {
		if c.Type == t {
			return c.Status
		}
	}
	return ""
}

// Remove takes that a pod shall not be any more.
func (m *Manager) Remove(uid types.UID) {
	m.mu.Lock()
	w := m.workers[uid]
	m.mu.Unlock()
	if w != nil {
		w.remove()
	}
}

// Prune removes every pod of a source that is not in desired. It must be
// called only when desired is known in full.
func (m *Manager) Prune(source string, desired map[types.UID]bool) {
	m.mu.Lock()
	workers := m.list()
	m.mu.Unlock()
	for _, w := range workers {
		if desired[w.uid] {
			continue
		}
		if s := w.source(); s == source || s == "" && source == SourceAPI {
			w.remove()
		}
	}
}

// SourceAPI and SourceFile are where pods come from.
const (
	SourceAPI  = "api"
	SourceFile = "file"
)

// Unhold lets pods run from their records although their source was not
// heard: the coordinator is away.
func (m *Manager) Unhold() {
	m.mu.Lock()
	workers := m.list()
	m.mu.Unlock()
	for _, w := range workers {
		w.letRun()
	}
}

// Poke makes the pod's worker look again.
func (m *Manager) Poke(uid types.UID) {
	m.mu.Lock()
	w := m.workers[uid]
	m.mu.Unlock()
	if w != nil {
		w.poke()
	}
}

// PokeAll makes all workers look again.
func (m *Manager) PokeAll() {
	m.mu.Lock()
	workers := m.list()
	m.mu.Unlock()
	for _, w := range workers {
		w.poke()
	}
}

// Probed takes a probe's verdict that differs from the one before.
func (m *Manager) Probed(r probe.Result) {
	m.mu.Lock()
	w := m.workers[r.UID]
	m.mu.Unlock()
	if w != nil {
		w.post(func() { w.probed(r) })
	}
}

// Evict ends a pod with a verdict; grace, in seconds, caps its own when it is
// not negative.
func (m *Manager) Evict(uid types.UID, v record.Verdict, disrupted *record.Verdict, grace int64) {
	m.mu.Lock()
	w := m.workers[uid]
	m.mu.Unlock()
	if w != nil {
		w.mu.Lock()
		w.shown.ended = true
		w.mu.Unlock()
		w.post(func() {
			if w.rec.Ended == nil {
				w.rec.Ended, w.rec.Disrupted = &v, disrupted
				w.hasten(grace, time.Now())
			}
		})
	}
}

// hasten has the pod end within a grace period, in seconds, if that is sooner than it
// would; negative: within its own.
func (w *worker) hasten(grace int64, now time.Time) {
	p := w.desired()
	if grace < 0 || p == nil {
		return
	}
	next := &record.Stopping{Since: now, Grace: min(grace, defaultGrace(p))}
	cur := w.rec.Stopping
	if cur != nil && cur.Grace-int64(now.Sub(cur.Since)/time.Second) <= next.Grace {
		return
	}
	w.rec.Stopping = next
	w.quicken(cur)
}

// Pods returns every pod known, by UID, for the kubelet API and admission.
func (m *Manager) Pods() []*corev1.Pod {
	m.mu.Lock()
	workers := m.list()
	m.mu.Unlock()
	out := make([]*corev1.Pod, 0, len(workers))
	for _, w := range workers {
		if p := w.desired(); p != nil && !w.at().unclaimed() {
			out = append(out, p)
		}
	}
	return out
}

// View is a pod with what is known of it.
type View struct {
	Pod      *corev1.Pod
	Observed *record.Observed
	Ended    bool // its containers are gone, its volumes and groups too
}

// View returns what is known of one pod, false when there is none.
func (m *Manager) View(uid types.UID) (View, bool) {
	m.mu.Lock()
	w := m.workers[uid]
	m.mu.Unlock()
	if w == nil {
		return View{}, false
	}
	return w.view(), true
}

// Manifest tells whether there is a pod of a manifest of that name, other than the one of
// the UID.
func (m *Manager) Manifest(name types.NamespacedName, other types.UID) bool {
	m.mu.Lock()
	workers := m.list()
	m.mu.Unlock()
	for _, w := range workers {
		p := w.desired()
		if p == nil || w.uid == other || w.source() != SourceFile {
			continue
		}
		if p.Namespace == name.Namespace && p.Name == name.Name {
			return true
		}
	}
	return false
}

// OfAPI tells whether a pod of the API has a UID.
func (m *Manager) OfAPI(uid types.UID) bool {
	m.mu.Lock()
	w := m.workers[uid]
	m.mu.Unlock()
	return w != nil && w.desired() != nil && w.source() == SourceAPI
}

// Find returns the pod of a namespace and name, the newest when a pod was
// replaced.
func (m *Manager) Find(namespace, name string) (View, bool) {
	m.mu.Lock()
	workers := m.list()
	m.mu.Unlock()
	var found *worker
	for _, w := range workers {
		p := w.desired()
		if p == nil || p.Namespace != namespace || p.Name != name {
			continue
		}
		if found == nil || found.desired().CreationTimestamp.Before(&p.CreationTimestamp) {
			found = w
		}
	}
	if found == nil {
		return View{}, false
	}
	return found.view(), true
}

// Addresses are those of the pods that run now and have a network of their own.
func (m *Manager) Addresses() []netip.Addr {
	m.mu.Lock()
	workers := m.list()
	m.mu.Unlock()
	var out []netip.Addr
	for _, w := range workers {
		v := w.view()
		sb := v.Observed.Sandbox()
		if v.Pod == nil || v.Pod.Spec.HostNetwork || sb == nil {
			continue
		}
		for _, ip := range sb.IPs {
			if a, err := netip.ParseAddr(ip); err == nil {
				out = append(out, a)
			}
		}
	}
	return out
}

func (m *Manager) list() []*worker {
	out := make([]*worker, 0, len(m.workers))
	for _, w := range m.workers {
		out = append(out, w)
	}
	return out
}

func (m *Manager) isForgotten(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.forgotten[uid]
}

// drop forgets a worker whose pod has nothing left on the node. One that its source
// has again by now begins anew.
func (m *Manager) drop(w *worker) {
	m.mu.Lock()
	w.mu.Lock()
	p, claimant := w.pod, w.claimantLocked()
	w.phase = w.phase.after(cleaned)
	w.mu.Unlock()
	delete(m.workers, w.uid)
	if w.rec.Source == SourceFile {
		if m.forgotten == nil {
			m.forgotten = map[types.UID]bool{}
		}
		m.forgotten[w.uid] = true
	}
	m.mu.Unlock()
	m.dead.forget(w.uid)
	m.shed.seen(w.uid, 0) // what it had is gone with it
	if claimant != "" && p.DeletionTimestamp == nil {
		m.comeBack(p, claimant, w.rec)
	}
	if w.rec.Source == SourceFile && m.ManifestGone != nil {
		m.ManifestGone()
	}
	m.retryForRoom()
}
