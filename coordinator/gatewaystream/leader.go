package gatewaystream

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/shoal-project/shoal/coordinator/gateway"
)

// leader is what the coordinator that leads knows beside the plan.
type leader struct {
	*Hub
	arrivals
	events   record.EventBroadcaster
	recorder record.EventRecorder
	invalid  map[types.UID]string // IngressClasses of which an event tells
}

func newLeader(h *Hub) *leader {
	l := &leader{Hub: h, events: record.NewBroadcaster(), invalid: map[types.UID]string{}}
	l.recorder = l.events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "gateways"})
	l.events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: h.cfg.Client.CoreV1().Events("")})
	return l
}

// tellInvalid tells what is wrong with the parameters of IngressClasses, which have no status.
func (l *leader) tellInvalid(p *gateway.Plan) {
	now := map[types.UID]string{}
	for class, why := range p.Invalid {
		now[class.UID] = why
		if l.invalid[class.UID] != why {
			l.log.Warn("an IngressClass's parameters are not valid; nobody answers for its Ingresses",
				"class", class.Name, "err", why)
			l.recorder.Event(class, corev1.EventTypeWarning, "InvalidParameters", why)
		}
	}
	l.invalid = now
}

// arrive is how long a node has been told that it answers for a Service, before it becomes an
// endpoint: until it does.
const arrive = 3 * time.Second

// arrival is a node that a Service's endpoints do not have yet.
type arrival struct{ namespace, service, node string }

// arrivals are those under way.
type arrivals struct {
	since map[arrival]time.Time
	next  map[arrival]time.Time
	due   time.Time // when the next of them has arrived; zero: none is under way
}

// begin begins a round in which all are asked for that are under way; what it returns ends it.
func (a *arrivals) begin() (end func()) {
	a.next, a.due = map[arrival]time.Time{}, time.Time{}
	return func() { a.since = a.next }
}

// arrived tells whether a node may be an endpoint now.
func (a *arrivals) arrived(who arrival, now time.Time) bool {
	since, known := a.since[who]
	if !known {
		since = now
	}
	a.next[who] = since // until the endpoints have it
	due := since.Add(arrive)
	if !due.After(now) {
		return true
	}
	if a.due.IsZero() || due.Before(a.due) {
		a.due = due
	}
	return false
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
