package pod

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/probe"
	"github.com/shoal-project/shoal/agent/record"
	"github.com/shoal-project/shoal/agent/volume"
)

// probed takes a probe's verdict.
func (w *worker) probed(r probe.Result) {
	cr := w.rec.Get(r.Container)
	if cr.ID != r.ID {
		return
	}
	c := w.rec.Of(r.Container)
	switch r.Kind {
	case probe.Readiness:
		c.Ready = r.Good
	case probe.Startup:
		if r.Good {
			c.Started = true
		} else {
			c.Unhealthy, c.ProbeGrace = "Container "+r.Container+" failed startup probe", r.Grace
		}
	case probe.Liveness:
		if !r.Good {
			c.Unhealthy, c.ProbeGrace = "Container "+r.Container+" failed liveness probe", r.Grace
		}
	}
}

// probes tells the prober what to watch: running containers whose hooks are
// done; only readiness counts while the pod ends.
func (w *worker) probes(p *corev1.Pod, o *record.Observed) {
	var targets []probe.Target
	now := map[string]string{}
	record.EachContainer(p, func(c *corev1.Container) {
		ob := o.Latest(c.Name)
		cr := w.rec.Get(c.Name)
		if ob == nil || ob.State != record.Running || cr.ID != ob.ID || !cr.Hooked {
			return
		}
		t := probe.Target{UID: w.uid, Pod: p, Container: c, ID: ob.ID, Started: ob.Started,
			IPs: w.rec.IPs, Ready: cr.Ready}
		if p.Spec.HostNetwork && len(w.m.Host.IPs) > 0 {
			t.IPs = w.m.Host.IPs
		}
		if w.rec.Stopping == nil && c.StartupProbe != nil && !cr.Started {
			t.Startup = expanded(c, c.StartupProbe)
		}
		if w.rec.Stopping == nil && cr.Started {
			t.Liveness = expanded(c, c.LivenessProbe)
		}
		if cr.Started {
			t.Readiness = expanded(c, c.ReadinessProbe)
		}
		if t.Startup != nil || t.Liveness != nil || t.Readiness != nil {
			targets = append(targets, t)
			now[c.Name] = t.Key()
		}
	})
	if sameTargets(w.targets, now) {
		return
	}
	w.targets = now
	w.m.Probes.Set(w.uid, targets)
}

// expanded is a probe whose command has the values that the container's spec gives to
// variables. As with the kubelet, those from elsewhere (valueFrom) are empty.
func expanded(c *corev1.Container, p *corev1.Probe) *corev1.Probe {
	refers := func(word string) bool { return strings.Contains(word, "$") }
	if p == nil || p.Exec == nil || !slices.ContainsFunc(p.Exec.Command, refers) {
		return p
	}
	p = p.DeepCopy()
	for i, word := range p.Exec.Command {
		p.Exec.Command[i] = volume.Expand(word, func(name string) (value string, ok bool) {
			for _, e := range slices.Backward(c.Env) {
				if e.Name == name {
					return e.Value, true
				}
			}
			return "", false
		})
	}
	return p
}

func sameTargets(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if b[k] != v {
			return false
		}
	}
	return true
}
