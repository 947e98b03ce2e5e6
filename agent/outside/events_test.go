package outside

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	criapi "k8s.io/cri-api/pkg/apis"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// teller is a runtime with one pod, which tells of its containers what it is made to.
type teller struct {
	criapi.RuntimeService
	stream chan *criv1.ContainerEventResponse
	breaks chan error

	mu         sync.Mutex
	containers map[string]criv1.ContainerState
	lists      int
	fails      error
}

func newTeller() *teller {
	return &teller{stream: make(chan *criv1.ContainerEventResponse), breaks: make(chan error),
		containers: map[string]criv1.ContainerState{}}
}

func (f *teller) GetContainerEvents(
	ctx context.Context, to chan *criv1.ContainerEventResponse, _ func(criv1.RuntimeService_GetContainerEventsClient),
) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-f.breaks:
			return err
		case e := <-f.stream:
			to <- e
		}
	}
}

func (f *teller) ListPodSandbox(context.Context, *criv1.PodSandboxFilter) ([]*criv1.PodSandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists++
	if f.fails != nil {
		return nil, f.fails
	}
	return []*criv1.PodSandbox{{Id: "s", Metadata: &criv1.PodSandboxMetadata{Uid: "pod"}}}, nil
}

func (f *teller) ListContainers(context.Context, *criv1.ContainerFilter) ([]*criv1.Container, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []*criv1.Container
	for id, state := range f.containers {
		out = append(out, &criv1.Container{Id: id, PodSandboxId: "s", State: state})
	}
	return out, nil
}

// set changes a container; tells has the stream say so, too.
func (f *teller) set(id string, s criv1.ContainerState, tells bool) {
	f.mu.Lock()
	f.containers[id] = s
	f.mu.Unlock()
	if tells {
		f.stream <- &criv1.ContainerEventResponse{ContainerId: id, ContainerEventType: stateOfContainer(s),
			PodSandboxStatus: &criv1.PodSandboxStatus{Id: "s", Metadata: &criv1.PodSandboxMetadata{Uid: "pod"}}}
	}
}

func (f *teller) remove(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.containers, id)
}

func (f *teller) asked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lists
}

// followed runs test with what follows a runtime's events.
func followed(t *testing.T, test func(t *testing.T, f *teller, events <-chan *criv1.ContainerEventResponse)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newTeller()
		r := &Runtime{RuntimeService: f, log: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithCancel(t.Context())
		events, done := make(chan *criv1.ContainerEventResponse, 100), make(chan error)
		go func() { done <- r.GetContainerEvents(ctx, events, nil) }()
		synctest.Wait()
		if e := <-events; e.ContainerId != "s" || e.PodSandboxStatus.Metadata.Uid != "pod" {
			t.Errorf("what is there at first: %v", e)
		}
		test(t, f, events)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// expect waits for one event and no other.
func expect(t *testing.T, events <-chan *criv1.ContainerEventResponse, id string, s state, within time.Duration) {
	t.Helper()
	select {
	case e := <-events:
		if e.ContainerId != id || e.ContainerEventType != s || e.PodSandboxStatus.GetMetadata().GetUid() != "pod" {
			t.Errorf("%v, want %s %s", e, id, s)
		}
	case <-time.After(within):
		t.Errorf("nothing is told of %s, which has %s", id, s)
	}
	synctest.Wait()
	if len(events) > 0 {
		t.Errorf("told more than once: %v", <-events)
	}
}

// TestEventsOfSilentRuntime: CRI-2. What a runtime does not tell is found in a second.
func TestEventsOfSilentRuntime(t *testing.T) {
	followed(t, func(t *testing.T, f *teller, events <-chan *criv1.ContainerEventResponse) {
		f.set("c", criv1.ContainerState_CONTAINER_CREATED, false)
		expect(t, events, "c", created, 2*often)
		f.set("c", criv1.ContainerState_CONTAINER_RUNNING, false)
		expect(t, events, "c", started, 2*often)
		time.Sleep(time.Hour)
		f.set("c", criv1.ContainerState_CONTAINER_EXITED, false)
		expect(t, events, "c", stopped, 2*often)
		f.remove("c")
		expect(t, events, "c", deleted, 2*often)
	})
}

// TestEventsOfTellingRuntime: a runtime that tells is seldom asked, until it has kept something
// to itself; nothing is told twice.
func TestEventsOfTellingRuntime(t *testing.T) {
	followed(t, func(t *testing.T, f *teller, events <-chan *criv1.ContainerEventResponse) {
		f.set("c", criv1.ContainerState_CONTAINER_RUNNING, true)
		expect(t, events, "c", started, time.Millisecond)
		before := f.asked()
		time.Sleep(10*seldom + often)
		if n := f.asked() - before; n < 9 || n > 11 {
			t.Errorf("asked %d times in %v", n, 10*seldom)
		}
		f.set("c", criv1.ContainerState_CONTAINER_EXITED, false)
		expect(t, events, "c", stopped, seldom+often)
		f.set("d", criv1.ContainerState_CONTAINER_RUNNING, false)
		expect(t, events, "d", started, 2*often)
		f.set("d", criv1.ContainerState_CONTAINER_EXITED, true)
		expect(t, events, "d", stopped, time.Millisecond)
		if time.Sleep(10 * often); len(events) > 0 {
			t.Errorf("told twice: %v", <-events)
		}
	})
}

// TestEventsOfRestartedRuntime: while there is no stream, and when the runtime has failed,
// nothing is missed; the stream is followed again.
func TestEventsOfRestartedRuntime(t *testing.T) {
	followed(t, func(t *testing.T, f *teller, events <-chan *criv1.ContainerEventResponse) {
		f.set("c", criv1.ContainerState_CONTAINER_RUNNING, true)
		expect(t, events, "c", started, time.Millisecond)
		f.mu.Lock()
		f.fails = errors.New("gone")
		f.mu.Unlock()
		f.breaks <- errors.New("gone")
		f.set("c", criv1.ContainerState_CONTAINER_EXITED, false)
		time.Sleep(2 * seldom)
		if len(events) > 0 {
			t.Errorf("told by a list that failed: %v", <-events)
		}
		f.mu.Lock()
		f.fails = nil
		f.mu.Unlock()
		expect(t, events, "c", stopped, 2*often)
		f.set("d", criv1.ContainerState_CONTAINER_RUNNING, true)
		expect(t, events, "d", started, time.Millisecond)
	})
}
