package pod

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/pod/launch"
	"github.com/shoal-project/shoal/agent/record"
)

// Kind is what an Action does.
type Kind int

// Kinds of actions. Those marked (job) run beside the worker; the worker
// decides again when they end.
const (
	Setup         Kind = iota // (job) ensure every step before containers
	Start                     // (job) pull, create, start container Name
	Hook                      // (job) run the postStart hook of a running container again
	Resize                    // (job) give running containers what is allocated to them
	Stop                      // (job) end container ID with Grace
	Remove                    // remove the ended container ID
	RemoveSandbox             // remove the ended sandbox ID
	Hold                      // record why container Name waits, until Until
	End                       // record the verdict that ends the pod
	Release                   // (job) undo every step, last first
	Finish                    // (job) the pod is over: delete the API object
	Forget                    // (job) nothing desired, nothing left: drop the record
)

func (k Kind) String() string {
	return [...]string{"setup", "start", "hook", "resize", "stop", "remove", "remove-sandbox", "hold", "end", "release", "finish", "forget"}[k]
}

// Action is one thing to do for a pod.
type Action struct {
	Kind Kind
	// Name is the container's name; ID what it is about in the runtime.
	Name, ID string
	// Attempt is the number of the container or sandbox to make.
	Attempt uint32
	// Grace is in seconds.
	Grace int64
	// Message tells why, in the words of the event.
	Message string
	// Again: the container is stopped only to start as its spec now wants it.
	Again bool
	// Backoff is the pause after the next failure (Start).
	Backoff time.Duration
	Verdict record.Verdict
	Until   time.Time
}

// Input is all that Decide looks at.
type Input struct {
	Pod      *v1.Pod
	Record   *record.Pod
	Observed *record.Observed
	// Removed: the API (or the manifest) no longer has the pod.
	Removed bool
	// Busy holds what jobs are under way for: a container's name while it is
	// started, a container's ID while it is stopped, and the empty string
	// for the pod as a whole.
	Busy map[string]bool
	// MaxBackoff caps the crash loop's pauses.
	MaxBackoff time.Duration
	Now        time.Time
}

// Plan is what to do now, and when to look again at the latest.
type Plan struct {
	Actions []Action
	Wake    time.Time
}

func (p *Plan) add(a Action) { p.Actions = append(p.Actions, a) }

func (p *Plan) wake(t time.Time) {
	if p.Wake.IsZero() || t.Before(p.Wake) {
		p.Wake = t
	}
}

const (
	firstBackoff = 10 * time.Second
	// imagePullShown is how long ErrImagePull shows before it turns to
	// ImagePullBackOff.
	imagePullShown = 2 * time.Second
)

// Decide returns the next actions for a pod. It is pure.
func Decide(in Input) Plan {
	d := &decision{Input: in}
	switch {
	case in.Busy[""]:
	case in.Record.Stopping != nil:
		d.end()
	default:
		d.live()
	}
	return d.plan
}

type decision struct {
	Input
	plan Plan
}

// live decides for a pod that shall run.
func (d *decision) live() {
	if v := d.verdict(); v != nil {
		d.plan.add(Action{Kind: End, Verdict: *v})
		return
	}
	if d.done() {
		d.endSidecars()
		return
	}
	sb := d.Observed.Sandbox()
	if sb == nil || !sb.Ready {
		d.sandbox(sb)
		return
	}
	if d.resize() {
		return
	}
	d.clean(sb)
	if d.inits(sb) {
		d.mains(sb)
	}
}

// resize tells whether it is time to try a resize.
func (d *decision) resize() bool {
	z := &d.Record.Resize
	if !z.Actuating || len(d.Busy) > 0 {
		return false
	}
	if d.Now.Before(z.Retry) {
		d.plan.wake(z.Retry)
		return false
	}
	if z.Updated {
		return false
	}
	d.plan.add(Action{Kind: Resize})
	return true
}

// verdict is the pod's own deadline (activeDeadlineSeconds).
func (d *decision) verdict() *record.Verdict {
	limit := d.Pod.Spec.ActiveDeadlineSeconds
	if limit == nil || d.Record.Ended != nil || d.Record.Admitted.IsZero() {
		return nil
	}
	at := d.Record.Admitted.Add(time.Duration(*limit) * time.Second)
	if d.Now.Before(at) {
		d.plan.wake(at)
		return nil
	}
	return &record.Verdict{Phase: v1.PodFailed, Reason: "DeadlineExceeded",
		Message: "Pod was active on the node longer than the specified deadline"}
}

// done tells whether every main container ended for good, or an init
// container failed for good.
func (d *decision) done() bool {
	for i := range d.Pod.Spec.InitContainers {
		c := &d.Pod.Spec.InitContainers[i]
		if record.Sidecar(c) {
			continue
		}
		if e := d.exit(c.Name); e != nil && e.ExitCode != 0 && !d.restarts(c, e.ExitCode) {
			return true
		}
	}
	for i := range d.Pod.Spec.Containers {
		c := &d.Pod.Spec.Containers[i]
		e := d.exit(c.Name)
		if e == nil || d.restarts(c, e.ExitCode) {
			return false
		}
	}
	return true
}

// exit returns how the container's last run ended, nil while it runs or never
// ran.
func (d *decision) exit(name string) *v1.ContainerStateTerminated {
	if o := d.Observed.Latest(name); o != nil {
		if o.State != record.Exited {
			return nil
		}
		t := o.Terminated()
		return &t
	}
	if s := d.Record.Get(name).Seen; s != nil {
		return &s.State
	}
	return nil
}

// endSidecars ends what still runs beside a pod that is done, then releases.
func (d *decision) endSidecars() {
	if !d.stopAll(defaultGrace(d.Pod)) && !d.Record.Released && len(d.Busy) == 0 {
		d.plan.add(Action{Kind: Release})
	}
}

// sandbox ends what is left of a dead sandbox and makes a new one.
func (d *decision) sandbox(old *record.Sandbox) {
	if old != nil && d.Observed.Running() {
		for i := range d.Observed.Containers {
			o := &d.Observed.Containers[i]
			if o.State == record.Running && !d.Busy[o.ID] {
				d.plan.add(Action{Kind: Stop, Name: o.Name, ID: o.ID, Grace: defaultGrace(d.Pod),
					Message: "Stopping container " + o.Name})
			}
		}
		return
	}
	if d.Now.Before(d.Record.Retry) {
		d.plan.wake(d.Record.Retry)
		return
	}
	a := Action{Kind: Setup, Attempt: d.Record.SandboxAttempts}
	if old != nil {
		a.ID = old.ID
		a.Attempt = max(a.Attempt, old.Attempt+1)
	}
	d.plan.add(a)
}

// clean removes containers and sandboxes that later ones have replaced. The
// newest ended run of a name stays: it is the last state and has the log.
func (d *decision) clean(sb *record.Sandbox) {
	kept := map[string]int{}
	holds := map[string]bool{}
	for i := range d.Observed.Containers {
		o := &d.Observed.Containers[i]
		kept[o.Name]++
		newest := kept[o.Name] == 1
		switch {
		case o.State == record.Created && newest && !d.Busy[o.Name]:
			// The agent died between create and start.
			d.plan.add(Action{Kind: Remove, Name: o.Name, ID: o.ID, Attempt: o.Attempt})
		case kept[o.Name] > 2 && o.State == record.Exited:
			d.plan.add(Action{Kind: Remove, Name: o.Name, ID: o.ID, Attempt: o.Attempt})
		default:
			holds[o.SandboxID] = true
		}
	}
	for i := range d.Observed.Sandboxes {
		s := &d.Observed.Sandboxes[i]
		if s.ID != sb.ID && !s.Ready && !holds[s.ID] {
			d.plan.add(Action{Kind: RemoveSandbox, ID: s.ID})
		}
	}
}

// inits decides for init containers, in order, and tells whether the main
// ones may run.
func (d *decision) inits(sb *record.Sandbox) bool {
	begun := d.begun(sb)
	for i := range d.Pod.Spec.InitContainers {
		c := &d.Pod.Spec.InitContainers[i]
		o := d.current(sb, c.Name)
		if record.Sidecar(c) {
			d.keep(sb, c, o)
			if !begun && (o == nil || o.State != record.Running || !d.Record.Get(c.Name).Started) {
				return false
			}
			continue
		}
		if begun || d.passed(sb, c.Name, o) {
			continue
		}
		d.keep(sb, c, o)
		return false
	}
	return true
}

// passed tells whether an init container ended well in this sandbox.
func (d *decision) passed(sb *record.Sandbox, name string, o *record.Observation) bool {
	if o != nil {
		return o.State == record.Exited && o.ExitCode == 0
	}
	// The runtime may have lost it; what came after it shows that it ended.
	s := d.Record.Get(name).Seen
	return s != nil && s.State.ExitCode == 0 && d.laterThan(sb, name)
}

// laterThan tells whether a container after name exists in the sandbox.
func (d *decision) laterThan(sb *record.Sandbox, name string) bool {
	after := false
	for i := range d.Pod.Spec.InitContainers {
		if after && d.current(sb, d.Pod.Spec.InitContainers[i].Name) != nil {
			return true
		}
		after = after || d.Pod.Spec.InitContainers[i].Name == name
	}
	return false
}

// begun tells whether a main container exists in the sandbox: then the init
// containers are over.
func (d *decision) begun(sb *record.Sandbox) bool {
	for i := range d.Pod.Spec.Containers {
		if o := d.current(sb, d.Pod.Spec.Containers[i].Name); o != nil && o.State != record.Created {
			return true
		}
	}
	return false
}

func (d *decision) mains(sb *record.Sandbox) {
	for i := range d.Pod.Spec.Containers {
		c := &d.Pod.Spec.Containers[i]
		d.keep(sb, c, d.current(sb, c.Name))
	}
	for i := range d.Pod.Spec.EphemeralContainers {
		c := v1.Container(d.Pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		if d.Observed.Latest(c.Name) == nil && d.Record.Get(c.Name).Seen == nil {
			d.start(&c, 0)
		}
	}
}

// current returns the newest container of a name in this sandbox.
func (d *decision) current(sb *record.Sandbox, name string) *record.Observation {
	o := d.Observed.Latest(name)
	if o == nil || o.SandboxID != sb.ID {
		return nil
	}
	return o
}

// keep makes one container be as its spec says.
func (d *decision) keep(sb *record.Sandbox, c *v1.Container, o *record.Observation) {
	switch {
	case d.Busy[c.Name]:
	case o == nil:
		if e := d.exit(c.Name); e != nil && d.ended(c, e) {
			return // ended for good in an earlier sandbox
		}
		d.start(c, d.attempt(c.Name))
	case o.State == record.Running:
		d.running(c, o)
	case o.State == record.Exited:
		t := o.Terminated()
		if d.restarts(c, t.ExitCode) {
			d.restart(c, t.FinishedAt.Time)
		}
	}
}

// ended tells whether a run in an earlier sandbox needs no other: a main
// container that its policy does not restart.
func (d *decision) ended(c *v1.Container, e *v1.ContainerStateTerminated) bool {
	for i := range d.Pod.Spec.Containers {
		if d.Pod.Spec.Containers[i].Name == c.Name {
			return !d.restarts(c, e.ExitCode)
		}
	}
	return false
}

// running stops a container that is unhealthy or no longer as specified.
func (d *decision) running(c *v1.Container, o *record.Observation) {
	r := d.Record.Get(c.Name)
	if d.Busy[o.ID] || r.ID != o.ID {
		return
	}
	switch {
	case o.Hash != "" && o.Hash != launch.Hash(c):
		d.plan.add(Action{Kind: Stop, Name: c.Name, ID: o.ID, Grace: defaultGrace(d.Pod), Again: true,
			Message: "Container " + c.Name + " definition changed, will be restarted"})
	case d.outgrown(c, o):
		d.plan.add(Action{Kind: Stop, Name: c.Name, ID: o.ID, Grace: defaultGrace(d.Pod), Again: true,
			Message: "Container " + c.Name + " resize requires restart"})
	case r.Unhealthy != "":
		grace := defaultGrace(d.Pod)
		if r.ProbeGrace != nil {
			grace = *r.ProbeGrace
		}
		msg := r.Unhealthy
		if r.Hooked && Restarts(d.Pod, c, 137) { // a failed hook is told without
			msg += ", will be restarted"
		}
		d.plan.add(Action{Kind: Stop, Name: c.Name, ID: o.ID, Grace: grace, Message: msg})
	case !r.Hooked && c.Lifecycle != nil && c.Lifecycle.PostStart != nil:
		d.plan.add(Action{Kind: Hook, Name: c.Name, ID: o.ID})
	}
}

// outgrown tells whether a container must be restarted for its resources.
func (d *decision) outgrown(c *v1.Container, o *record.Observation) bool {
	had := actuated(d.Record, c, o.ID)
	return had != nil && needsRestart(c, had)
}

// restarts tells whether a container that ended runs again.
func (d *decision) restarts(c *v1.Container, code int32) bool {
	return d.Record.Get(c.Name).Again || Restarts(d.Pod, c, code)
}

// restart starts an ended container again, after its pause.
func (d *decision) restart(c *v1.Container, finished time.Time) {
	r := d.Record.Get(c.Name)
	limit := d.MaxBackoff
	if limit == 0 {
		limit = 5 * time.Minute
	}
	fresh := r.Backoff == 0 || finished.Sub(r.BackoffAt) > 2*limit
	if until := finished.Add(r.Backoff); !fresh && d.Now.Before(until) {
		d.hold(c.Name, until, record.Verdict{Reason: "CrashLoopBackOff",
			Message: "back-off " + r.Backoff.String() + " restarting failed container=" + c.Name +
				" pod=" + fullName(d.Pod)})
		return
	}
	next := min(firstBackoff, limit)
	if !fresh {
		next = min(2*r.Backoff, limit)
	}
	d.startWith(c, d.attempt(c.Name), next)
}

func (d *decision) start(c *v1.Container, attempt uint32) {
	d.startWith(c, attempt, d.Record.Get(c.Name).Backoff)
}

// startWith starts a container, unless its last try failed a moment ago or
// another container of the pod is being started (they start one by one).
func (d *decision) startWith(c *v1.Container, attempt uint32, backoff time.Duration) {
	r := d.Record.Get(c.Name)
	if r.Fault != nil && r.Fault.Reason != "CrashLoopBackOff" && d.Now.Before(r.Retry) {
		if r.Fault.Reason == "ErrImagePull" {
			d.showPullBackoff(c, r)
		}
		d.plan.wake(r.Retry)
		return
	}
	if d.starting() {
		return
	}
	d.plan.add(Action{Kind: Start, Name: c.Name, Attempt: attempt, Backoff: backoff})
}

func (d *decision) showPullBackoff(c *v1.Container, r record.Container) {
	shown := r.Retry.Add(-r.Delay).Add(imagePullShown)
	if d.Now.Before(shown) {
		d.plan.wake(shown)
		return
	}
	d.hold(c.Name, r.Retry, record.Verdict{Reason: "ImagePullBackOff",
		Message: "Back-off pulling image \"" + c.Image + "\": ErrImagePull: " + r.Fault.Message})
}

func (d *decision) hold(name string, until time.Time, v record.Verdict) {
	d.plan.wake(until)
	if f := d.Record.Get(name).Fault; f == nil || *f != v {
		d.plan.add(Action{Kind: Hold, Name: name, Verdict: v, Until: until})
	}
}

// starting tells whether a container start is under way or planned.
func (d *decision) starting() bool {
	for _, a := range d.plan.Actions {
		if a.Kind == Start || a.Kind == Hook {
			return true
		}
	}
	for _, list := range [][]v1.Container{d.Pod.Spec.InitContainers, d.Pod.Spec.Containers} {
		for i := range list {
			if d.Busy[list[i].Name] {
				return true
			}
		}
	}
	return false
}

// attempt is the number of the container's next run.
func (d *decision) attempt(name string) uint32 {
	var n uint32
	if o := d.Observed.Latest(name); o != nil {
		n = o.Attempt + 1
	}
	if s := d.Record.Get(name).Seen; s != nil {
		n = max(n, s.Attempt+1)
	}
	return n
}

// end decides for a pod that is being stopped.
func (d *decision) end() {
	elapsed := int64(d.Now.Sub(d.Record.Stopping.Since) / time.Second)
	if d.stopAll(max(0, d.Record.Stopping.Grace-elapsed)) || len(d.Busy) > 0 {
		return
	}
	switch {
	case !d.Record.Released:
		d.plan.add(Action{Kind: Release})
	case d.Removed:
		d.plan.add(Action{Kind: Forget})
	case d.Pod.DeletionTimestamp != nil:
		d.plan.add(Action{Kind: Finish})
	}
}

// stopAll stops what runs, sidecars after the others and last first, and
// tells whether anything still runs.
func (d *decision) stopAll(grace int64) bool {
	sidecars := map[string]int{}
	for i := range d.Pod.Spec.InitContainers {
		if record.Sidecar(&d.Pod.Spec.InitContainers[i]) {
			sidecars[d.Pod.Spec.InitContainers[i].Name] = i
		}
	}
	var last *record.Observation
	others := false
	running := false
	for i := range d.Observed.Containers {
		o := &d.Observed.Containers[i]
		if o.State != record.Running && o.State != record.Created {
			continue
		}
		if o.State == record.Created && d.Busy[o.Name] {
			running = true
			continue
		}
		if o.State == record.Created {
			d.plan.add(Action{Kind: Remove, Name: o.Name, ID: o.ID, Attempt: o.Attempt})
			continue
		}
		running = true
		if n, ok := sidecars[o.Name]; ok {
			if last == nil || n > sidecars[last.Name] {
				last = o
			}
			continue
		}
		others = true
		d.stop(o, grace)
	}
	if !others && last != nil {
		d.stop(last, grace)
	}
	return running
}

func (d *decision) stop(o *record.Observation, grace int64) {
	if !d.Busy[o.ID] {
		d.plan.add(Action{Kind: Stop, Name: o.Name, ID: o.ID, Grace: grace, Message: "Stopping container " + o.Name})
	}
}

// Restarts tells whether a container that ended with this code runs again:
// its own rules, its own policy, then the pod's (KEP-5307).
func Restarts(p *v1.Pod, c *v1.Container, code int32) bool {
	if record.Sidecar(c) {
		return true
	}
	for _, r := range c.RestartPolicyRules {
		if r.ExitCodes != nil && matches(r.ExitCodes, code) {
			return r.Action == v1.ContainerRestartRuleActionRestart
		}
	}
	policy := string(p.Spec.RestartPolicy)
	if c.RestartPolicy != nil {
		policy = string(*c.RestartPolicy)
	}
	init := false
	for i := range p.Spec.InitContainers {
		init = init || p.Spec.InitContainers[i].Name == c.Name
	}
	switch policy {
	case string(v1.RestartPolicyNever):
		return false
	case string(v1.RestartPolicyOnFailure):
		return code != 0
	default:
		return !init || code != 0
	}
}

func matches(r *v1.ContainerRestartRuleOnExitCodes, code int32) bool {
	in := false
	for _, v := range r.Values {
		in = in || v == code
	}
	return in == (r.Operator == v1.ContainerRestartRuleOnExitCodesOpIn)
}

func defaultGrace(p *v1.Pod) int64 {
	if p.Spec.TerminationGracePeriodSeconds != nil {
		return *p.Spec.TerminationGracePeriodSeconds
	}
	return 30
}

func fullName(p *v1.Pod) string {
	return p.Name + "_" + p.Namespace + "(" + string(p.UID) + ")"
}
