package runtime

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/shoal-project/shoal/agent/container"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Event tells that a container or sandbox changed. Receivers ask for its
// state, which may be newer.
type Event struct {
	Type        criv1.ContainerEventType
	ContainerID string // the sandbox's ID for events of the sandbox itself
	SandboxID   string
	PodUID      string
	At          time.Time
}

type events struct {
	mu   sync.Mutex
	next int
	subs map[int]func(Event)
}

// Subscribe calls fn for each event from now on, at once and in order of one
// container's life. fn must not block. The returned function ends it.
func (r *Runtime) Subscribe(fn func(Event)) (cancel func()) {
	e := &r.events
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.subs == nil {
		e.subs = map[int]func(Event){}
	}
	e.next++
	id := e.next
	e.subs[id] = fn
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.subs, id)
	}
}

func (e *events) send(ev Event) {
	if ev.At.IsZero() {
		ev.At = time.Now()
	}
	e.mu.Lock()
	subs := slices.Collect(maps.Values(e.subs))
	e.mu.Unlock()
	for _, fn := range subs {
		fn(ev)
	}
}

var changeTypes = map[container.State]criv1.ContainerEventType{
	container.Created: criv1.ContainerEventType_CONTAINER_CREATED_EVENT,
	container.Running: criv1.ContainerEventType_CONTAINER_STARTED_EVENT,
	container.Exited:  criv1.ContainerEventType_CONTAINER_STOPPED_EVENT,
}

// changed is told of each new state of a container.
func (r *Runtime) changed(c *container.Container) { r.events.send(r.event(c, changeTypes[c.State])) }

func (r *Runtime) event(c *container.Container, kind criv1.ContainerEventType) Event {
	ev := Event{Type: kind, ContainerID: c.ID, SandboxID: c.SandboxID}
	if s, err := r.sandboxes.Get(c.SandboxID); err == nil {
		ev.PodUID = s.UID()
	}
	return ev
}

// eventBacklog is how many events a slow client may be behind.
const eventBacklog = 4096

// GetContainerEvents sends events until ctx ends. The callback belongs to the
// gRPC client and is called with nil.
func (r *Runtime) GetContainerEvents(ctx context.Context, ch chan *criv1.ContainerEventResponse,
	connected func(criv1.RuntimeService_GetContainerEventsClient)) error {
	queue := make(chan Event, eventBacklog)
	cancel := r.Subscribe(func(ev Event) {
		select {
		case queue <- ev:
		default:
			r.cfg.Log.Warn("a client reads container events too slowly; one is dropped", "container", ev.ContainerID)
		}
	})
	defer cancel()
	if connected != nil {
		connected(nil)
	}
	for {
		select {
		case ev := <-queue:
			select {
			case ch <- r.eventResponse(ev):
			case <-ctx.Done():
				return ctx.Err()
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// eventResponse adds the pod's present state, as KEP-3386 asks.
func (r *Runtime) eventResponse(ev Event) *criv1.ContainerEventResponse {
	out := &criv1.ContainerEventResponse{ContainerId: ev.ContainerID, ContainerEventType: ev.Type,
		CreatedAt: ev.At.UnixNano()}
	if s, err := r.sandboxes.Get(ev.SandboxID); err == nil {
		out.PodSandboxStatus = sandboxStatus(s)
	}
	for _, c := range r.containers.Select(func(c *container.Container) bool { return c.SandboxID == ev.SandboxID }) {
		out.ContainersStatuses = append(out.ContainersStatuses, r.containerStatus(c))
	}
	return out
}
