package fence

import (
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PolicyAnnotation of a Pod says what becomes of it when its node is isolated.
const PolicyAnnotation = "shoal.io/when-isolated"

// Policy is a value of PolicyAnnotation.
type Policy string

const (
	// Stay: the pod runs on, and is not replaced until somebody says that its node is
	// off. This is what upstream does, and the default.
	Stay Policy = "stay"
	// Stop: the node stops the pod by its own clock; it is replaced once that is sure.
	Stop Policy = "stop"
	// StopIfReplaced: the pod is replaced as soon as its node is lost, and runs on until
	// its node hears of it. For what may run twice.
	StopIfReplaced Policy = "stop-if-replaced"
)

// ParsePolicy reads a value of the annotation.
func ParsePolicy(value string) (Policy, error) {
	switch p := Policy(value); p {
	case Stay, Stop, StopIfReplaced:
		return p, nil
	}
	return Stay, fmt.Errorf("%q is none of %s, %s, %s", value, Stay, Stop, StopIfReplaced)
}

// SourceAnnotation is on pods that their node read from a manifest.
const SourceAnnotation = "kubernetes.io/config.source"

// PolicyOf is a pod's policy. Pods of manifests stay: nobody but their node may end
// them.
func PolicyOf(pod *corev1.Pod) Policy {
	if _, ok := pod.Annotations[corev1.MirrorPodAnnotationKey]; ok {
		return Stay
	}
	if _, ok := pod.Annotations[SourceAnnotation]; ok {
		return Stay
	}
	p, err := ParsePolicy(pod.Annotations[PolicyAnnotation])
	if err != nil {
		return Stay
	}
	return p
}

// Annotations of a node's Lease. The coordinator writes Raised and Lifting, the agent
// Stopped, Covered and Held; the agent also makes a Lease with a fence that is Raised, since
// nobody knows what was on the one before.
const (
	// Raised names a fence. While it is there no answer renews the node's hold.
	Raised = "fence.shoal.io/raised"
	// Lifting is Raised's value once the fence is being taken away: nobody acts by it
	// any more.
	Lifting = "fence.shoal.io/lifting"
	// Stopped is Raised's value once no pod of the policy stop runs on the node.
	Stopped = "fence.shoal.io/stopped"
	// Covered tells how long the node's hold lasts after a renewal began, and which
	// renewal that was said with. An agent that knows nothing of fences renews the Lease
	// without it: then it does not count.
	Covered = "fence.shoal.io/covered"
	// Held is Covered of a node whose hold other nodes may prolong, with their names. A
	// coordinator that knows nothing of that does nothing by time.
	Held = "fence.shoal.io/held"
)

// SetCovered says on a Lease that is about to be written that its node stops its pods
// length after the renewal at the latest, or after the last time that most of the voters,
// if there are any, said that it may go on.
func SetCovered(l *coordinationv1.Lease, length time.Duration, voters ...string) {
	notCovered(l)
	if said := length.String() + " " + renewal(l); len(voters) == 0 {
		set(l, Covered, said)
	} else {
		set(l, Held, said+" "+strings.Join(voters, ","))
	}
}

func notCovered(l *coordinationv1.Lease) {
	delete(l.Annotations, Covered)
	delete(l.Annotations, Held)
}

// renewal is the time of a Lease's renewal as the API keeps it: in microseconds.
func renewal(l *coordinationv1.Lease) string {
	return l.Spec.RenewTime.UTC().Format(metav1.RFC3339Micro)
}

// CoveredFor is the length that SetCovered said with the last renewal; 0: nothing.
func CoveredFor(l *coordinationv1.Lease) time.Duration {
	length, _ := covered(l)
	return length
}

// VotersOf are those that SetCovered named with the last renewal.
func VotersOf(l *coordinationv1.Lease) []string {
	_, voters := covered(l)
	return voters
}

func covered(l *coordinationv1.Lease) (length time.Duration, voters []string) {
	said, held := l.Annotations[Held]
	if !held {
		said = l.Annotations[Covered]
	}
	words := strings.Split(said, " ")
	if held != (len(words) == 3) || len(words) < 2 || l.Spec.RenewTime == nil || words[1] != renewal(l) {
		return 0, nil
	}
	d, err := time.ParseDuration(words[0])
	if err != nil || d <= 0 || d > time.Hour {
		return 0, nil
	}
	if held {
		voters = strings.Split(words[2], ",")
	}
	return d, voters
}

// Raise names a new fence on a Lease that is about to be written. Its name tells how long a
// hold may last that began before, so that every leader knows.
func Raise(l *coordinationv1.Lease) {
	set(l, Raised, CoveredFor(l).String()+"-"+rand.Text())
}

// LengthOf is how long a hold may last that began before a fence was raised; 0: nobody
// knows, and nothing is done by time.
func LengthOf(raised string) time.Duration {
	length, _, _ := strings.Cut(raised, "-")
	if d, err := time.ParseDuration(length); err == nil && d > 0 {
		return d
	}
	return 0
}

func set(l *coordinationv1.Lease, key, value string) {
	if l.Annotations == nil {
		l.Annotations = map[string]string{}
	}
	l.Annotations[key] = value
}

// Timing that both sides reckon with.
const (
	// Length is how long a hold lasts.
	Length = 10 * time.Second
	// StopBound is how long after its deadline a pod may still run: the time until a
	// keeper is scheduled and its signals are delivered.
	StopBound = 3 * time.Second
	// drift: no two clocks differ in rate by more than one part in this many.
	drift = 50
)

// Wait is how long after the write of a fence was answered its coordinator must wait,
// by its own clock, until no pod of a hold of that length runs.
func Wait(length time.Duration) time.Duration { return length + length/drift + StopBound }
