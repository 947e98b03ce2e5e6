package pod

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/pod/launch"
	"github.com/shoal-project/shoal/agent/record"
)

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
}

// ephemeral starts the containers that somebody looks into the pod with, whatever the others
// wait for: that may be what is to be looked at.
func (d *decision) ephemeral() {
	for i := range d.Pod.Spec.EphemeralContainers {
		c := corev1.Container(d.Pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		began := d.Observed.Latest(c.Name) != nil || d.Record.Get(c.Name).Seen != nil
		if !began && !d.Busy[c.Name] && !d.pauses(&c) {
			d.plan.add(Action{Kind: Start, Name: c.Name})
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
func (d *decision) keep(sb *record.Sandbox, c *corev1.Container, o *record.Observation) {
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
		if d.restarts(c, o.ExitCode) {
			d.restart(c, o)
		}
	}
}

// ended tells whether a run in an earlier sandbox needs no other: a main
// container that its policy does not restart.
func (d *decision) ended(c *corev1.Container, e *corev1.ContainerStateTerminated) bool {
	for i := range d.Pod.Spec.Containers {
		if d.Pod.Spec.Containers[i].Name == c.Name {
			return !d.restarts(c, e.ExitCode)
		}
	}
	return false
}

// running stops a container that is unhealthy or no longer as specified.
func (d *decision) running(c *corev1.Container, o *record.Observation) {
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
		if r.Hooked && Restarts(d.Pod, c, killed) { // a failed hook is told without
			msg += ", will be restarted"
		}
		d.plan.add(Action{Kind: Stop, Name: c.Name, ID: o.ID, Grace: grace, Message: msg, Failed: r.Hooked})
	case !r.Hooked && c.Lifecycle != nil && c.Lifecycle.PostStart != nil:
		d.plan.add(Action{Kind: Hook, Name: c.Name, ID: o.ID})
	}
}

// outgrown tells whether a container must be restarted for its resources.
func (d *decision) outgrown(c *corev1.Container, o *record.Observation) bool {
	if !d.Record.Resize.Actuating {
		return false
	}
	had := outdated(d.Record, d.Pod, c, o.ID)
	return had != nil && needsRestart(d.Pod, c, had)
}

// killed is the exit code of a container that was killed.
const killed = 137

// restarts tells whether a container that ended runs again.
func (d *decision) restarts(c *corev1.Container, code int32) bool {
	r := d.Record.Get(c.Name)
	return r.Again || Restarts(d.Pod, c, code) || r.Failed && Restarts(d.Pod, c, killed)
}

// restart starts an ended container again, after its pause. One of another image has none.
func (d *decision) restart(c *corev1.Container, o *record.Observation) {
	r, finished := d.Record.Get(c.Name), o.Terminated().FinishedAt.Time
	limit := d.MaxBackoff
	if limit == 0 {
		limit = 5 * time.Minute
	}
	fresh := r.Backoff == 0 || finished.Sub(r.BackoffAt) > 2*limit || o.Hash != "" && o.Hash != launch.Hash(c)
	setBack := finished.Sub(d.Now) > time.Second // the clock was: nobody knows since when it waits
	if until := finished.Add(r.Backoff); !fresh && d.Now.Before(until) && !setBack {
		d.hold(c.Name, until, record.Verdict{Reason: "CrashLoopBackOff",
			Message: "back-off " + r.Backoff.String() + " restarting failed container=" + c.Name +
				" pod=" + fullName(d.Pod)})
		return
	}
	next := min(firstBackoff, limit)
	if !fresh {
		next = min(2*r.Backoff, limit)
	}
	d.startWith(c, Action{Attempt: d.attempt(c.Name), Backoff: next, Ended: true})
}

func (d *decision) start(c *corev1.Container, attempt uint32) {
	d.startWith(c, Action{Attempt: attempt, Backoff: d.Record.Get(c.Name).Backoff})
}

// startWith starts a container, unless its last try failed a moment ago or
// another container of the pod is being started (they start one by one).
func (d *decision) startWith(c *corev1.Container, a Action) {
	if d.pauses(c) || d.starting() {
		return
	}
	a.Kind, a.Name = Start, c.Name
	d.plan.add(a)
}

// pauses tells whether a container waits because its last start failed. What failed for
// an image that the container no longer names is no reason.
func (d *decision) pauses(c *corev1.Container) bool {
	r := d.Record.Get(c.Name)
	if r.Fault == nil || r.Fault.Reason == "CrashLoopBackOff" || !d.Now.Before(r.Retry) || !d.names(c, r.Fault.Image) {
		return false
	}
	if r.Fault.Reason == "ErrImagePull" {
		d.showPullBackoff(c, r)
	}
	d.plan.wake(r.Retry)
	return true
}

// names tells whether an image is a container's, or one that a volume of the pod is made of.
func (d *decision) names(c *corev1.Container, image string) bool {
	return image == "" || image == c.Image || slices.ContainsFunc(d.Pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.Image != nil && v.Image.Reference == image
	})
}

func (d *decision) showPullBackoff(c *corev1.Container, r record.Container) {
	shown := r.Retry.Add(-r.Delay).Add(imagePullShown)
	if d.Now.Before(shown) {
		d.plan.wake(shown)
		return
	}
	image := cmp.Or(r.Fault.Image, c.Image)
	d.hold(c.Name, r.Retry, record.Verdict{Reason: "ImagePullBackOff", Image: image,
		Message: "Back-off pulling image \"" + image + "\": ErrImagePull: " + r.Fault.Message})
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
	for _, list := range [][]corev1.Container{d.Pod.Spec.InitContainers, d.Pod.Spec.Containers} {
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

func fullName(p *corev1.Pod) string {
	return p.Name + "_" + p.Namespace + "(" + string(p.UID) + ")"
}
