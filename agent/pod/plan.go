package pod

import (
	"time"

	corev1 "k8s.io/api/core/v1"

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
	Proceed                   // let the job that stops container ID go on: it is its turn
	Remove                    // remove the ended container ID
	RemoveSandbox             // remove the ended sandbox ID
	Hold                      // record why container Name waits, until Until
	End                       // record the verdict that ends the pod
	Release                   // (job) undo every step, last first
	Finish                    // (job) the pod is over: delete the API object
	Forget                    // (job) nothing desired, nothing left: drop the record
)

func (k Kind) String() string {
	return [...]string{"setup", "start", "hook", "resize", "stop", "proceed", "remove", "remove-sandbox",
		"hold", "end", "release", "finish", "forget"}[k]
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
	// Again: the container is stopped only to start as its spec now wants it (Stop),
	// or removed to begin anew (Remove).
	Again bool
	// Wait: the container's preStop hook is run now, and it is stopped when it is its turn
	// or the grace period is over (Stop).
	Wait bool
	// Failed: the container is stopped because a probe failed (Stop).
	Failed bool
	// Backoff is the pause after the next failure (Start). Ended: the container starts after
	// it has ended, and the time until that pause counts for nothing begins anew.
	Backoff time.Duration
	Ended   bool
	Verdict record.Verdict
	Until   time.Time
}

// Input is all that Decide looks at.
type Input struct {
	Pod      *corev1.Pod
	Record   *record.Pod
	Observed *record.Observed
	// Removed: the API (or the manifest) no longer has the pod. Claimed: it was heard
	// to have it.
	Removed, Claimed bool
	// Busy holds what jobs are under way for: a container's name while it is
	// started, a container's ID while it is stopped, and the empty string
	// for the pod as a whole.
	Busy map[string]bool
	// Surplus are the IDs of ended containers that are more than the node keeps.
	Surplus map[string]bool
	// Waiting holds the IDs of containers that wait for their turn to be stopped.
	Waiting map[string]bool
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
		d.removeSurplus()
		d.end()
	default:
		d.removeSurplus()
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
	if d.Record.RestartingAll {
		d.removeAll()
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
	d.ephemeral()
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
	return &record.Verdict{Phase: corev1.PodFailed, Reason: "DeadlineExceeded",
		Message: "Pod was active on the node longer than the specified deadline"}
}

// done tells whether every main container ended for good, or is stopped for good because a
// probe failed, or an init container failed for good.
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
		if e == nil && d.stopsForGood(c) {
			continue
		}
		if e == nil || d.restarts(c, e.ExitCode) {
			return false
		}
	}
	return true
}

// stopsForGood tells whether a container that runs is stopped because a probe failed, and
// does not run again.
func (d *decision) stopsForGood(c *corev1.Container) bool {
	o := d.Observed.Latest(c.Name)
	return o != nil && o.State == record.Running && d.Record.Get(c.Name).Failed && !d.restarts(c, killed)
}

// exit returns how the container's last run ended, nil while it runs or never
// ran.
func (d *decision) exit(name string) *corev1.ContainerStateTerminated {
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
	if !d.stopAll(defaultGrace(d.Pod), true) && !d.Record.Released && len(d.Busy) == 0 {
		d.plan.add(Action{Kind: Release})
	}
}

// sandbox ends what is left of a dead sandbox and makes a new one.
func (d *decision) sandbox(old *record.Sandbox) {
	if old != nil && d.Observed.Running() {
		for i := range d.Observed.Containers {
			o := &d.Observed.Containers[i]
			if o.State == record.Running && !d.Busy[o.ID] {
				// It has not failed, nor done what it was for: it runs on in the next
				// sandbox, unless the pod's containers run once only.
				d.plan.add(Action{Kind: Stop, Name: o.Name, ID: o.ID, Grace: defaultGrace(d.Pod),
					Message: "Stopping container " + o.Name,
					Again:   d.Pod.Spec.RestartPolicy != corev1.RestartPolicyNever})
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

// clean removes what an agent left that died between create and start, and sandboxes that
// later ones have replaced and that have no container any more.
func (d *decision) clean(sb *record.Sandbox) {
	seen := map[string]bool{}
	holds := map[string]bool{}
	for i := range d.Observed.Containers {
		o := &d.Observed.Containers[i]
		newest := !seen[o.Name]
		seen[o.Name] = true
		switch {
		case o.State == record.Created && newest && !d.Busy[o.Name]:
			d.plan.add(Action{Kind: Remove, Name: o.Name, ID: o.ID, Attempt: o.Attempt})
		case !d.Surplus[o.ID]:
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
