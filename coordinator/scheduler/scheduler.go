package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
	"github.com/shoal-project/shoal/coordinator/scheduler/plugins"
	"github.com/shoal-project/shoal/coordinator/scheduler/queue"
)

// Config is what a Scheduler needs.
type Config struct {
	Client kubernetes.Interface
	// Informers must not be started before New, which asks for the ones it needs.
	Informers informers.SharedInformerFactory
	Log       *slog.Logger // nil discards
	// Configuration applies if set, else that of ConfigFile, else the defaults.
	Configuration *configv1.KubeSchedulerConfiguration
	ConfigFile    string // YAML of a KubeSchedulerConfiguration v1
	// Binders is how many bindings are under way at most (default 64).
	Binders int
}

// Scheduler places pods on nodes. It serves one Run.
type Scheduler struct {
	c        Config
	log      *slog.Logger
	profiles map[string]*Profile
	recorder map[string]events.EventRecorder
	sort     framework.QueueSortPlugin

	cache     *podCache
	snap      *framework.Snapshot
	queue     *queue.Queue
	nominated *nominator
	placer    *placer
	extenders *extenders // nil: none
	binder    *binder
	status    *statusWriter
	waiting   *waiting
	devices   *devices
	pods      corelisters.PodLister
	broadcast events.EventBroadcaster
}

// New reads the configuration and builds the plugins. It starts nothing.
func New(c Config) (*Scheduler, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Binders == 0 {
		c.Binders = 64
	}
	settings, err := readConfig(c)
	if err != nil {
		return nil, fmt.Errorf("scheduler configuration: %w", err)
	}
	s := &Scheduler{
		c: c, log: c.Log, profiles: map[string]*Profile{}, recorder: map[string]events.EventRecorder{},
		cache: newCache(), snap: framework.NewSnapshot(), nominated: newNominator(), waiting: newWaiting(),
		pods:      c.Informers.Core().V1().Pods().Lister(),
		broadcast: events.NewBroadcaster(&events.EventSinkImpl{Interface: c.Client.EventsV1()}),
	}
	if len(settings.extenders) > 0 {
		s.extenders = &extenders{list: settings.extenders, log: s.log}
	}
	if s.devices, err = newDevices(c.Informers); err != nil {
		return nil, fmt.Errorf("scheduler: index device classes: %w", err)
	}
	profiles, err := buildAll(settings.profiles, s.deps)
	if err != nil {
		return nil, fmt.Errorf("scheduler configuration: %w", err)
	}
	for _, p := range profiles {
		if s.extenders != nil {
			p.hints[extenderName] = extenderHints
		}
		s.profiles[p.Name] = p
	}
	s.sort = profiles[0].sort
	s.placer = newPlacer(s.snap, s.nominated)
	s.placer.extenders = s.extenders
	s.status = newStatusWriter(c.Client, s.log)
	s.queue = queue.New(queue.Config{
		Less: s.sort.Less, PreEnqueue: s.preEnqueue, Hints: s.hints, Gated: s.gated, Incoming: incoming,
		InitialBackoff: settings.initialBackoff, MaxBackoff: settings.maxBackoff,
	})
	s.binder = &binder{s: s}
	current.show()
	s.watch()
	return s, nil
}

// Run schedules until ctx ends, then waits for the bindings under way.
func (s *Scheduler) Run(ctx context.Context) error {
	stopWatch, err := s.startWatch(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("scheduler: %w", err)
	}
	defer stopWatch()
	defer current.begin(s)()
	if err := s.broadcast.StartRecordingToSinkWithContext(ctx); err != nil {
		return fmt.Errorf("scheduler: events: %w", err)
	}
	defer s.broadcast.Shutdown()
	var wg sync.WaitGroup
	wg.Go(func() { s.status.run(ctx) })
	s.binder.start(ctx)
	for pod := s.queue.Pop(ctx); pod != nil; pod = s.queue.Pop(ctx) {
		s.scheduleOne(ctx, pod)
	}
	s.binder.stop()
	wg.Wait()
	return nil
}

func (s *Scheduler) deps(name string) *plugins.Deps {
	rec := s.broadcast.NewRecorder(scheme.Scheme, name)
	s.recorder[name] = rec
	core, apps := s.c.Informers.Core().V1(), s.c.Informers.Apps().V1()
	budgets := s.c.Informers.Policy().V1().PodDisruptionBudgets().Lister()
	owners := &owners{
		services: core.Services().Lister(), controllers: core.ReplicationControllers().Lister(),
		replicaSets: apps.ReplicaSets().Lister(), statefulSets: apps.StatefulSets().Lister(),
	}
	var review plugins.Review
	if s.extenders != nil {
		review = s.extenders.review
	}
	return &plugins.Deps{
		Review: review,
		Client: s.c.Client, Recorder: rec, OwnerSelector: owners.selector,
		Budgets: func() ([]*policyv1.PodDisruptionBudget, error) { return budgets.List(labels.Everything()) },
		Storage: newStorage(s.c.Informers, s.c.Client),
		Devices: s.devices,
		Lower:   s.nominated.lower,
		Denominate: func(p *corev1.Pod) {
			s.nominated.remove(p.UID)
			s.status.nominate(p, "")
		},
		Pod:       func(ns, name string) (*corev1.Pod, error) { return s.pods.Pods(ns).Get(name) },
		Reject:    s.waiting.preempt,
		Preempts:  preemptionAttempts.Inc,
		Preempted: func(victims int) { preemptionVictims.Observe(float64(victims)) },
	}
}

// scheduleOne is the scheduling cycle of one pod.
func (s *Scheduler) scheduleOne(ctx context.Context, q *framework.QueuedPod) {
	profile, pod := s.profiles[schedulerName(q.Pod)], q.Pod
	if profile == nil || s.cache.has(pod.UID) {
		s.queue.Done(pod.UID)
		return
	}
	if pod.DeletionTimestamp != nil {
		s.recorder[profile.Name].Eventf(pod, nil, corev1.EventTypeWarning, "FailedScheduling", "Scheduling",
			"skip schedule deleting pod: %v/%v", pod.Namespace, pod.Name)
		s.queue.Done(pod.UID)
		return
	}
	begin := time.Now()
	s.cache.refresh(s.snap)
	node, c, err := s.placer.place(ctx, profile, q.PodInfo)
	if err != nil {
		s.noPlace(ctx, profile, q, c, err)
		algorithmDuration.Observe(time.Since(begin).Seconds())
		failedAttempt(profile, begin, err)
		return
	}
	algorithmDuration.Observe(time.Since(begin).Seconds())
	if !s.cache.assume(q.PodInfo, node) {
		s.queue.Done(pod.UID)
		return
	}
	s.nominated.remove(pod.UID)
	b := &binding{profile: profile, pod: q, node: node, begin: begin}
	if st := b.reserveAndPermit(ctx, s, c.class); !st.OK() && !st.Is(framework.Wait) {
		b.undo(ctx, s)
		err := s.statusError(st)
		s.refuse(ctx, profile, q, err, &framework.Nomination{})
		failedAttempt(profile, begin, err)
		return
	}
	s.queue.Done(pod.UID)
	s.binder.submit(ctx, b)
}

// noPlace runs the PostFilter plugins and refuses the pod.
func (s *Scheduler) noPlace(ctx context.Context, profile *Profile, q *framework.QueuedPod, c *cycle, err error) {
	nominate := &framework.Nomination{}
	var fit *framework.FitError
	if errors.As(err, &fit) {
		var st *framework.Status
		begin := time.Now()
		nominate, st = runPostFilter(ctx, profile, c)
		timed("PostFilter", profile, begin, st)
		fit.PostFilter = st.Message()
		if st.Is(framework.Error) {
			s.log.Error("post filter failed", "pod", q.Pod.Namespace+"/"+q.Pod.Name, "err", st.Message())
			// No event tells when it would succeed: the pod is tried again after a back-off.
			fit.RejectedBy, fit.PendingOn = nil, nil
		}
	}
	s.refuse(ctx, profile, q, err, nominate)
}

func runPostFilter(ctx context.Context, profile *Profile, c *cycle) (*framework.Nomination, *framework.Status) {
	var last *framework.Nomination
	var reasons []string
	for _, pl := range profile.postFilter {
		n, st := pl.PostFilter(ctx, c)
		if st.OK() || st.Is(framework.UnschedulableAndUnresolvable) || !st.Rejected() {
			return n, st.By(pl.Name())
		}
		if n != nil {
			last = n
		}
		if m := st.Message(); m != "" {
			reasons = append(reasons, m)
		}
	}
	return last, framework.NewStatus(framework.Unschedulable, reasons...)
}

// statusError turns the refusal of a later extension point into what refuse takes.
func (s *Scheduler) statusError(st *framework.Status) error {
	if st.Is(framework.Error) {
		if st.Err != nil {
			return st.Err
		}
		return errors.New(st.Message())
	}
	e := &framework.FitError{NumAllNodes: 1, Reasons: map[string]int{}, RejectedBy: sets.New[string](),
		PendingOn: sets.New[string]()}
	for _, r := range st.Reasons {
		e.Reasons[r]++
	}
	e.Blame(st)
	return e
}

// refuse sends a pod back to the queue and tells why: by an event and by the
// condition PodScheduled. nominate nil leaves the nominated node as it is.
func (s *Scheduler) refuse(ctx context.Context, profile *Profile, q *framework.QueuedPod, err error,
	nominate *framework.Nomination) {
	reason := corev1.PodReasonSchedulerError
	q.RejectedBy, q.PendingOn = nil, nil
	var fit *framework.FitError
	switch {
	case errors.As(err, &fit):
		reason, q.RejectedBy, q.PendingOn = corev1.PodReasonUnschedulable, fit.RejectedBy, fit.PendingOn
	case errors.Is(err, errNoNodes):
		// Any plugin's interest in new nodes may bring the pod back.
		reason, q.RejectedBy = corev1.PodReasonUnschedulable, sets.New[string]()
		for _, f := range profile.filters {
			q.RejectedBy.Insert(f.Name())
		}
	case ctx.Err() == nil && q.ConsecutiveErrors == 0:
		s.log.Error("cannot schedule a pod; retrying", "pod", q.Pod.Namespace+"/"+q.Pod.Name, "err", err)
	}
	pod, e := s.pods.Pods(q.Pod.Namespace).Get(q.Pod.Name)
	if e != nil || pod.UID != q.Pod.UID || pod.Spec.NodeName != "" {
		s.queue.Done(q.Pod.UID)
		return
	}
	if pod != q.Pod {
		if info, e := framework.NewPodInfo(pod); e == nil {
			q.PodInfo = info
		}
	}
	if nominate != nil {
		s.nominated.set(q.PodInfo, nominate.Node)
	}
	s.queue.Refuse(q)
	s.recorder[profile.Name].Eventf(pod, nil, corev1.EventTypeWarning, "FailedScheduling", "Scheduling",
		"%s", truncate(err.Error()))
	s.status.refuse(pod, reason, err.Error(), nominate)
}

// truncate keeps a note within the API's limit for events.
func truncate(m string) string {
	const limit, suffix = 1024, " ..."
	if len(m) <= limit {
		return m
	}
	return m[:limit-len(suffix)] + suffix
}

func (s *Scheduler) preEnqueue(pod *corev1.Pod) *framework.Status {
	if p := s.profiles[schedulerName(pod)]; p != nil {
		return p.runPreEnqueue(pod)
	}
	return nil
}

func (s *Scheduler) hints(pod *corev1.Pod, plugin string) []framework.EventHint {
	if pod != nil {
		if p := s.profiles[schedulerName(pod)]; p != nil {
			return p.hints[plugin]
		}
		return nil
	}
	for _, p := range s.profiles {
		if h := p.hints[plugin]; h != nil {
			return h
		}
	}
	return nil
}

// gated tells of a pod that waits for its gates, unless the API server has.
func (s *Scheduler) gated(pod *corev1.Pod, why *framework.Status) {
	if why.Plugin == plugins.SchedulingGatesName {
		s.status.refuse(pod, corev1.PodReasonSchedulingGated,
			"Scheduling is blocked due to non-empty scheduling gates", nil)
	}
}

func schedulerName(pod *corev1.Pod) string {
	if pod.Spec.SchedulerName == "" {
		return corev1.DefaultSchedulerName
	}
	return pod.Spec.SchedulerName
}

// waitSync waits for informers with the context.
func waitSync(ctx context.Context, synced []cache.InformerSynced) error {
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return errors.New("informers did not sync before the end")
	}
	return nil
}
