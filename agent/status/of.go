package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/shoal-project/shoal/agent/record"
)

// Facts is what Of needs beside the pod.
type Facts struct {
	HostIPs []string
	// Scheme prefixes container IDs, as in "containerd://".
	Scheme string
	QOS    corev1.PodQOSClass
	// Restarts tells whether a container that ended so runs again.
	Restarts func(p *corev1.Pod, c *corev1.Container, code int32) bool
	Now      metav1.Time
	// Devices is what is known of the devices of a container of the pod; nil: nothing.
	Devices func(p *corev1.Pod, c *corev1.Container) []corev1.ResourceStatus
}

// For returns the pod's status. It is pure. What others own in the last status
// (their conditions) is kept, transition times move only with transitions.
func For(p *corev1.Pod, r *record.Pod, o *record.Observed, f Facts) corev1.PodStatus {
	restarts := f.Restarts
	failed := func(c *corev1.Container, code int32) bool {
		return r.Get(c.Name).Failed && r.Stopping == nil && !restarts(p, c, code) && restarts(p, c, killed)
	}
	f.Restarts = func(p *corev1.Pod, c *corev1.Container, code int32) bool {
		own := r.Get(c.Name)
		return r.RestartingAll || own.Again || restarts(p, c, code) || own.Failed && restarts(p, c, killed)
	}
	s := corev1.PodStatus{QOSClass: f.QOS, ObservedGeneration: p.Generation}
	if !r.Admitted.IsZero() {
		t := r.Admitted.Rfc3339Copy()
		s.StartTime = &t
	}
	if p.Status.StartTime != nil {
		s.StartTime = p.Status.StartTime
	}
	s.NominatedNodeName = p.Status.NominatedNodeName
	s.Resize = p.Status.Resize
	s.ResourceClaimStatuses = p.Status.ResourceClaimStatuses
	s.ExtendedResourceClaimStatus = p.Status.ExtendedResourceClaimStatus
	addresses(&s, p, r, f)
	refused := r.Ended != nil && len(o.Containers) == 0 && len(r.Containers) == 0 &&
		len(p.Status.InitContainerStatuses)+len(p.Status.ContainerStatuses) == 0
	if refused {
		// Never admitted: nothing is known of its containers.
		s.Phase, s.Reason, s.Message = endedPhase(r.Ended), r.Ended.Reason, r.Ended.Message
		s.Conditions = conditions(p, &s, r, o, f)
		return s
	}
	b := &builder{pod: p, rec: r, obs: o, f: f, failed: failed}
	s.InitContainerStatuses = b.list(p.Spec.InitContainers, true)
	s.ContainerStatuses = b.list(p.Spec.Containers, false)
	s.EphemeralContainerStatuses = b.ephemeral()
	resources(&s, p, r, o)
	s.Phase = phase(p, &s, r, o, f)
	if r.Stopping != nil && r.Released && !over(s.Phase) && !fromManifest(p) {
		s.Phase = corev1.PodFailed // it never began
		neverBegan(&s)
	}
	if r.Ended != nil && !(r.Ended.ByExit && s.Phase == corev1.PodSucceeded) {
		s.Phase, s.Reason, s.Message = endedPhase(r.Ended), r.Ended.Reason, r.Ended.Message
	}
	if old := p.Status.Phase; over(old) {
		s.Phase = old // terminal phases are final
		if s.Reason == "" {
			s.Reason, s.Message = p.Status.Reason, p.Status.Message
		}
	}
	s.Conditions = conditions(p, &s, r, o, f)
	if over(s.Phase) && !over(p.Status.Phase) && (o.Running() || r.Back) {
		s.Phase = cmp.Or(p.Status.Phase, corev1.PodPending)
		s.Reason, s.Message = p.Status.Reason, p.Status.Message
	}
	return s
}

// over tells whether a phase is the last of a pod: what it had may be given to another. So
// none is told while a container runs.
func over(phase corev1.PodPhase) bool {
	return phase == corev1.PodFailed || phase == corev1.PodSucceeded
}

func endedPhase(v *record.Verdict) corev1.PodPhase {
	if v.Phase == corev1.PodSucceeded {
		return corev1.PodSucceeded
	}
	return corev1.PodFailed
}

func addresses(s *corev1.PodStatus, p *corev1.Pod, r *record.Pod, f Facts) {
	for _, ip := range f.HostIPs {
		s.HostIPs = append(s.HostIPs, corev1.HostIP{IP: ip})
	}
	ips := r.IPs
	if p.Spec.HostNetwork {
		ips = f.HostIPs
	}
	for _, ip := range ips {
		s.PodIPs = append(s.PodIPs, corev1.PodIP{IP: ip})
	}
	if len(s.HostIPs) > 0 {
		s.HostIP = s.HostIPs[0].IP
	}
	if len(s.PodIPs) > 0 {
		s.PodIP = s.PodIPs[0].IP
	}
}

// resources tells what the pod as a whole was allocated, and what it has.
func resources(s *corev1.PodStatus, p *corev1.Pod, r *record.Pod, o *record.Observed) {
	s.AllocatedResources = resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{})
	has := *p
	if r.Resize.Actuating {
		has.Spec.Resources = r.Resize.From
	}
	has.Spec.InitContainers = actuated(p.Spec.InitContainers, r, o)
	has.Spec.Containers = actuated(p.Spec.Containers, r, o)
	s.Resources = &corev1.ResourceRequirements{
		Requests: resourcehelper.PodRequests(&has, resourcehelper.PodResourcesOptions{}),
		Limits:   resourcehelper.PodLimits(&has, resourcehelper.PodResourcesOptions{}),
	}
}

// actuated are the containers with the resources that they were given.
func actuated(list []corev1.Container, r *record.Pod, o *record.Observed) []corev1.Container {
	for i := range list {
		c := &list[i]
		cr, last := r.Get(c.Name), o.Latest(c.Name)
		if cr.Actuated == nil || last == nil || last.State != record.Running || cr.ID != last.ID {
			continue
		}
		if equality.Semantic.DeepEqual(*cr.Actuated, c.Resources) {
			continue
		}
		list = slices.Clone(list)
		list[i].Resources = *cr.Actuated
	}
	return list
}

type builder struct {
	pod *corev1.Pod
	rec *record.Pod
	obs *record.Observed
	f   Facts
	// failed tells whether a container runs again because it failed, although it ended so.
	failed func(c *corev1.Container, code int32) bool
}

// killed is the exit code of a container that was killed.
const killed = 137

// fromManifest tells whether a pod is not the API's.
func fromManifest(p *corev1.Pod) bool {
	from, ok := p.Annotations["kubernetes.io/config.source"]
	return ok && from != "api"
}

// neverBegan gives the containers an end that cannot run any more: whoever waits for it,
// such as the Job of a pod with a finalizer, must not wait for ever. Those that wait for an
// init container stay as they are.
func neverBegan(s *corev1.PodStatus) {
	for i := range s.InitContainerStatuses {
		t := s.InitContainerStatuses[i].State.Terminated
		if t == nil || t.ExitCode != 0 {
			return
		}
	}
	for i := range s.ContainerStatuses {
		if c := &s.ContainerStatuses[i]; c.State.Terminated == nil {
			c.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				Reason: "ContainerStatusUnknown", ExitCode: killed,
				Message: "The container could not be located when the pod was terminated"}}
		}
	}
}

func (b *builder) list(specs []corev1.Container, init bool) []corev1.ContainerStatus {
	var out []corev1.ContainerStatus
	for i := range specs {
		out = append(out, b.one(&specs[i], init))
	}
	if !init {
		slices.SortFunc(out, func(a, b corev1.ContainerStatus) int { return cmp.Compare(a.Name, b.Name) })
	}
	return out
}

func (b *builder) ephemeral() []corev1.ContainerStatus {
	var out []corev1.ContainerStatus
	for i := range b.pod.Spec.EphemeralContainers {
		c := corev1.Container(b.pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		s := b.one(&c, false)
		s.Ready, s.Started = false, nil
		out = append(out, s)
	}
	return out
}

// asksForDevices tells whether a container asks for claims, or for resources that are not
// Kubernetes' own.
func asksForDevices(c *corev1.Container) bool {
	for name := range c.Resources.Limits {
		if strings.Contains(string(name), "/") {
			return true
		}
	}
	return len(c.Resources.Claims) > 0
}

// one is the status of a container.
func (b *builder) one(c *corev1.Container, init bool) corev1.ContainerStatus {
	cr := b.rec.Get(c.Name)
	if old := b.final(c.Name); old != nil {
		return *old
	}
	s := corev1.ContainerStatus{Name: c.Name, Image: c.Image, AllocatedResources: c.Resources.Requests}
	no := false
	s.Started = &no
	if !init && asksForDevices(c) && b.f.Devices != nil {
		s.AllocatedResourcesStatus = b.f.Devices(b.pod, c)
	}
	for _, m := range c.VolumeMounts {
		vs := corev1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if m.ReadOnly {
			mode := corev1.RecursiveReadOnlyDisabled
			if m.RecursiveReadOnly != nil && *m.RecursiveReadOnly != corev1.RecursiveReadOnlyDisabled {
				mode = corev1.RecursiveReadOnlyEnabled
			}
			vs.RecursiveReadOnly = &mode
		}
		s.VolumeMounts = append(s.VolumeMounts, vs)
	}
	if len(c.Resources.Requests)+len(c.Resources.Limits) > 0 {
		s.Resources = c.Resources.DeepCopy()
	} else {
		s.Resources = &corev1.ResourceRequirements{}
	}
	if o := b.shown(c, cr); o != nil {
		b.observed(&s, o)
	} else {
		b.unseen(&s, cr)
	}
	if t := s.State.Terminated; t != nil && b.failed(c, t.ExitCode) {
		// The API takes this end for the last one.
		s.LastTerminationState = corev1.ContainerState{Terminated: t}
		s.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: b.defaultReason(init)}}
	}
	if cr.Fault != nil && s.State.Running == nil && b.rec.Stopping == nil {
		b.waiting(&s, c, cr)
	}
	if cr.ID != "" && s.State.Running != nil && b.f.Scheme+cr.ID == s.ContainerID {
		started := cr.Started
		s.Started, s.Ready = &started, cr.Ready
		if cr.Actuated != nil {
			s.Resources = cr.Actuated.DeepCopy()
		}
	}
	if init && !record.Sidecar(c) {
		s.Ready = s.State.Terminated != nil && s.State.Terminated.ExitCode == 0
	}
	if s.State == (corev1.ContainerState{}) {
		s.State.Waiting = &corev1.ContainerStateWaiting{Reason: b.defaultReason(init)}
	}
	if init && s.State.Terminated == nil {
		if old := b.last(c.Name); old != nil && old.State.Terminated != nil && !b.restartable(c, old) {
			return *old.DeepCopy()
		}
	}
	return s
}

// restartable tells whether the API takes that a container which it has as ended
// has not ended. An init container runs again in a new sandbox whatever its policy:
// the API hears of it when that run ends.
func (b *builder) restartable(c *corev1.Container, s *corev1.ContainerStatus) bool {
	return restartsTogether(b.pod) || record.Sidecar(c) ||
		c.RestartPolicy == nil && b.pod.Spec.RestartPolicy == corev1.RestartPolicyAlways ||
		b.f.Restarts(b.pod, c, s.State.Terminated.ExitCode)
}

// final is the last status of a container of a pod that is over and that the
// runtime does not have: nothing can change in it. A container that ran when it was
// last heard of is not over before somebody says so.
func (b *builder) final(name string) *corev1.ContainerStatus {
	if !over(b.pod.Status.Phase) || b.obs.Latest(name) != nil {
		return nil
	}
	old := b.last(name)
	if old == nil || old.State.Running != nil {
		return nil
	}
	return old.DeepCopy()
}

// last is the status of a container as it was last told, nil for none.
func (b *builder) last(name string) *corev1.ContainerStatus {
	s := &b.pod.Status
	for _, list := range [][]corev1.ContainerStatus{
		s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses,
	} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// shown is the run of a container that its status tells of: the newest, or the
// one before while the newest is still being started, which its postStart hook
// is part of. So a container without probes is ready as soon as it runs, and
// nobody sees a running pod that is unready for a moment.
func (b *builder) shown(c *corev1.Container, cr record.Container) *record.Observation {
	o := b.obs.Latest(c.Name)
	hooked := cr.Hooked || c.Lifecycle == nil || c.Lifecycle.PostStart == nil
	if o == nil || o.State != record.Running || cr.ID == o.ID && hooked || b.rec.Stopping != nil {
		return o
	}
	for i := range b.obs.Containers {
		if old := &b.obs.Containers[i]; old.Name == c.Name && old.ID != o.ID {
			return old
		}
	}
	return nil
}

func (b *builder) defaultReason(init bool) string {
	if len(b.pod.Spec.InitContainers) > 0 && !init {
		return "PodInitializing"
	}
	if len(b.pod.Spec.InitContainers) > 0 {
		return "PodInitializing"
	}
	return "ContainerCreating"
}

// observed fills the status from the runtime's newest container of the name.
func (b *builder) observed(s *corev1.ContainerStatus, o *record.Observation) {
	s.RestartCount = int32(o.Attempt)
	s.ContainerID = b.f.Scheme + o.ID
	s.ImageID = o.ImageRef
	if o.Image != "" && !strings.HasPrefix(o.Image, "sha256:") {
		s.Image = o.Image
	}
	s.User = o.User
	if o.StopSignal != "" {
		sig := corev1.Signal(o.StopSignal)
		s.StopSignal = &sig
	}
	switch o.State {
	case record.Running:
		s.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(o.Started).Rfc3339Copy()}
	case record.Exited:
		t := b.terminated(o.Terminated())
		s.State.Terminated = &t
	}
	for i := range b.obs.Containers {
		if last := &b.obs.Containers[i]; last.Name == o.Name && last.ID != o.ID && last.State == record.Exited {
			t := b.terminated(last.Terminated())
			s.LastTerminationState.Terminated = &t
			return
		}
	}
	if e := b.rec.Get(o.Name).Seen; e != nil && e.ID != o.ID {
		t := b.terminated(e.State)
		s.LastTerminationState.Terminated = &t
		return
	}
	// Of a run that has ended, the record does not tell the one before.
	switch old := b.last(o.Name); {
	case old == nil:
	case old.ContainerID != s.ContainerID && old.State.Terminated != nil:
		s.LastTerminationState.Terminated = old.State.Terminated
	default:
		s.LastTerminationState = old.LastTerminationState
	}
}

// unseen fills the status of a container that the runtime does not have.
func (b *builder) unseen(s *corev1.ContainerStatus, cr record.Container) {
	if cr.Seen == nil {
		return
	}
	s.RestartCount = int32(cr.Seen.Attempt)
	if cr.Seen.State.Reason == restartingAll {
		s.RestartCount++ // as the API has it at once
	}
	if cr.Seen.ID != "" {
		s.ContainerID = b.f.Scheme + cr.Seen.ID
	}
	t := b.terminated(cr.Seen.State)
	s.State.Terminated = &t
	old := b.last(s.Name)
	if old == nil || old.ContainerID != s.ContainerID {
		return
	}
	// Of the same run: what only the runtime knew.
	s.Image, s.ImageID, s.User, s.StopSignal = old.Image, old.ImageID, old.User, old.StopSignal
	if old.State.Waiting == nil { // else the last state is this one
		s.LastTerminationState = old.LastTerminationState
	}
}

func (b *builder) terminated(t corev1.ContainerStateTerminated) corev1.ContainerStateTerminated {
	if t.ContainerID != "" && !strings.Contains(t.ContainerID, "://") {
		t.ContainerID = b.f.Scheme + t.ContainerID
	}
	t.StartedAt, t.FinishedAt = t.StartedAt.Rfc3339Copy(), t.FinishedAt.Rfc3339Copy()
	return t
}

// waiting shows why a container cannot run now.
func (b *builder) waiting(s *corev1.ContainerStatus, c *corev1.Container, cr record.Container) {
	if t := s.State.Terminated; t != nil {
		if !b.f.Restarts(b.pod, c, t.ExitCode) {
			return
		}
		s.LastTerminationState = corev1.ContainerState{Terminated: t}
	}
	s.State = corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: cr.Fault.Reason, Message: cr.Fault.Message}}
}

// counts of containers by state, for the phase.
type counts struct{ running, waiting, stopped, final, succeeded int }

// phase is the pod's phase: pending until all its containers were started,
// running while any may run, then by how they ended.
func phase(p *corev1.Pod, s *corev1.PodStatus, r *record.Pod, o *record.Observed, f Facts) corev1.PodPhase {
	pending, failed := inits(p, s, f)
	if failed {
		return corev1.PodFailed
	}
	n := mains(p, s, f)
	begun := false
	for i := range p.Spec.Containers {
		c := o.Latest(p.Spec.Containers[i].Name)
		begun = begun || c != nil && c.State != record.Created
	}
	sidecarsRun := 0
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if !record.Sidecar(c) {
			continue
		}
		st := s.InitContainerStatuses[i]
		if st.State.Running != nil {
			sidecarsRun++
			if (st.Started == nil || !*st.Started) && !begun {
				pending = true
			}
		} else if st.State.Waiting != nil && st.LastTerminationState.Terminated == nil && !begun {
			pending = true
		}
	}
	switch {
	case pending, n.waiting > 0:
		return corev1.PodPending
	case n.running+sidecarsRun > 0:
		return corev1.PodRunning
	case n.stopped == 0:
		return corev1.PodPending
	}
	if r.Stopping != nil || n.final == n.stopped {
		if n.succeeded == n.stopped {
			return corev1.PodSucceeded
		}
		return corev1.PodFailed
	}
	return corev1.PodRunning
}

// inits tells whether init containers are yet to end, or failed for good.
func inits(p *corev1.Pod, s *corev1.PodStatus, f Facts) (pending, failed bool) {
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if record.Sidecar(c) {
			continue
		}
		st := s.InitContainerStatuses[i]
		t := st.State.Terminated
		if t == nil && st.State.Waiting != nil {
			t = st.LastTerminationState.Terminated
		}
		switch {
		case t == nil:
			pending = true
		case st.State.Waiting != nil && st.State.Waiting.Reason == restartingAll:
			// It ran: its pod is not pending again before it starts.
		case t.ExitCode != 0 && !f.Restarts(p, c, t.ExitCode):
			failed = true
		case t.ExitCode != 0 || st.State.Waiting != nil:
			pending = true
		}
	}
	return pending, failed
}

func mains(p *corev1.Pod, s *corev1.PodStatus, f Facts) counts {
	var n counts
	byName := map[string]*corev1.Container{}
	for i := range p.Spec.Containers {
		byName[p.Spec.Containers[i].Name] = &p.Spec.Containers[i]
	}
	for i := range s.ContainerStatuses {
		st := &s.ContainerStatuses[i]
		t := st.State.Terminated
		if t == nil && st.State.Waiting != nil {
			t = st.LastTerminationState.Terminated
		}
		switch {
		case st.State.Running != nil:
			n.running++
		case t == nil:
			n.waiting++
		default:
			n.stopped++
			if !f.Restarts(p, byName[st.Name], t.ExitCode) {
				n.final++
			}
			if t.ExitCode == 0 {
				n.succeeded++
			}
		}
	}
	return n
}

// Conditions that this package owns; the others are kept as they are.
var owned = map[corev1.PodConditionType]bool{
	corev1.PodReadyToStartContainers: true, corev1.PodInitialized: true, corev1.PodReady: true,
	corev1.ContainersReady: true, corev1.PodScheduled: true,
	corev1.PodResizePending: true, corev1.PodResizeInProgress: true, corev1.AllContainersRestarting: true,
}

func conditions(p *corev1.Pod, s *corev1.PodStatus, r *record.Pod, o *record.Observed, f Facts) []corev1.PodCondition {
	var out []corev1.PodCondition
	for _, c := range p.Status.Conditions {
		if !owned[c.Type] && !(c.Type == corev1.DisruptionTarget && r.Disrupted != nil) {
			out = append(out, c)
		}
	}
	add := func(t corev1.PodConditionType, ok bool, reason, message string) {
		c := corev1.PodCondition{Type: t, Status: corev1.ConditionFalse, Reason: reason, Message: message,
			ObservedGeneration: p.Generation, LastTransitionTime: f.Now}
		if ok {
			c.Status = corev1.ConditionTrue
		}
		for _, old := range p.Status.Conditions {
			if old.Type == t && old.Status == c.Status && !old.LastTransitionTime.IsZero() {
				c.LastTransitionTime = old.LastTransitionTime
			}
		}
		out = append(out, c)
	}
	if d := r.Disrupted; d != nil && !o.Running() { // as the phase
		add(corev1.DisruptionTarget, true, d.Reason, d.Message)
	}
	if z := r.Resize; z.Pending != nil {
		add(corev1.PodResizePending, true, z.Pending.Reason, z.Pending.Message)
		out[len(out)-1].ObservedGeneration = z.PendingGeneration
	}
	if z := r.Resize; z.Actuating {
		reason := ""
		if z.Error != "" {
			reason = corev1.PodReasonError
		}
		add(corev1.PodResizeInProgress, true, reason, z.Error)
		out[len(out)-1].ObservedGeneration = z.Generation
	}
	sb := o.Sandbox()
	add(corev1.PodReadyToStartContainers, sb != nil && sb.Ready && !r.Released, "", "")
	ok, reason, message := initialized(p, s)
	add(corev1.PodInitialized, ok, reason, message)
	ok, reason, message = containersReady(p, s)
	ready, gateReason, gateMessage := ok, reason, message
	if ok {
		ready, gateReason, gateMessage = gates(p, out)
	}
	add(corev1.PodReady, ready, gateReason, gateMessage)
	add(corev1.ContainersReady, ok, reason, message)
	add(corev1.PodScheduled, true, "", "")
	if restartsTogether(p) {
		reason, message = "", ""
		if r.RestartingAll {
			reason, message = "RestartAllContainersStarted", "container exited with restart policy rule"
		}
		add(corev1.AllContainersRestarting, r.RestartingAll, reason, message)
		out[len(out)-1].ObservedGeneration = 0
	}
	return out
}

// restartingAll is why a container waits that was removed to run again together with
// all others of its pod.
const restartingAll = "RestartingAllContainers"

// restartsTogether tells whether the end of a container can restart all of the pod.
func restartsTogether(p *corev1.Pod) bool {
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			for _, r := range list[i].RestartPolicyRules {
				if r.Action == corev1.ContainerRestartRuleActionRestartAllContainers {
					return true
				}
			}
		}
	}
	return false
}

func initialized(p *corev1.Pod, s *corev1.PodStatus) (bool, string, string) {
	if len(p.Spec.InitContainers) == 0 {
		if s.Phase == corev1.PodSucceeded {
			return true, "PodCompleted", ""
		}
		return true, "", ""
	}
	if s.InitContainerStatuses == nil {
		return false, "UnknownContainerStatuses", ""
	}
	if s.Phase == corev1.PodSucceeded {
		return true, "PodCompleted", ""
	}
	for _, c := range s.ContainerStatuses {
		if c.State.Running != nil || c.State.Terminated != nil || c.LastTerminationState.Terminated != nil {
			return true, "", ""
		}
	}
	var incomplete []string
	for i := range p.Spec.InitContainers {
		st := &s.InitContainerStatuses[i]
		done := st.Ready
		if record.Sidecar(&p.Spec.InitContainers[i]) {
			done = st.Started != nil && *st.Started
		}
		if !done {
			incomplete = append(incomplete, st.Name)
		}
	}
	if len(incomplete) > 0 && !wasInitialized(p) {
		return false, "ContainersNotInitialized", fmt.Sprintf("containers with incomplete status: %s", incomplete)
	}
	return true, "", ""
}

// wasInitialized tells whether the pod was initialized once: that does not end when
// its init containers run again.
func wasInitialized(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodInitialized {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func containersReady(p *corev1.Pod, s *corev1.PodStatus) (bool, string, string) {
	switch {
	case s.Phase == corev1.PodFailed:
		return false, "PodFailed", ""
	case s.Phase == corev1.PodSucceeded:
		return false, "PodCompleted", ""
	case s.ContainerStatuses == nil:
		return false, "UnknownContainerStatuses", ""
	}
	var unready []string
	for i := range p.Spec.InitContainers {
		if record.Sidecar(&p.Spec.InitContainers[i]) && !s.InitContainerStatuses[i].Ready {
			unready = append(unready, p.Spec.InitContainers[i].Name)
		}
	}
	ready := map[string]bool{}
	for _, c := range s.ContainerStatuses {
		ready[c.Name] = c.Ready
	}
	for i := range p.Spec.Containers {
		if !ready[p.Spec.Containers[i].Name] {
			unready = append(unready, p.Spec.Containers[i].Name)
		}
	}
	if len(unready) > 0 {
		return false, "ContainersNotReady", fmt.Sprintf("containers with unready status: %s", unready)
	}
	return true, "", ""
}

// gates looks at the conditions that readiness gates name.
func gates(p *corev1.Pod, have []corev1.PodCondition) (bool, string, string) {
	var msgs []string
	for _, g := range p.Spec.ReadinessGates {
		status := corev1.ConditionStatus("")
		for _, c := range have {
			if c.Type == g.ConditionType {
				status = c.Status
			}
		}
		switch status {
		case corev1.ConditionTrue:
		case "":
			msgs = append(msgs,
				fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.", string(g.ConditionType)))
		default:
			msgs = append(msgs,
				fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v", string(g.ConditionType),
					status))
		}
	}
	if len(msgs) > 0 {
		return false, "ReadinessGatesNotReady", strings.Join(msgs, ", ")
	}
	return true, "", ""
}
