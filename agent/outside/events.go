package outside

import (
	"context"
	"sync"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// often is how often a runtime is asked for its containers that has told of none of their
	// changes yet, or has kept one to itself; seldom how often one is that tells of them.
	often  = time.Second
	seldom = 30 * time.Second
	// A stream that has ended is opened again after firstPause, then after twice as long, at
	// most lastPause.
	firstPause = time.Second
	lastPause  = 30 * time.Second
)

// GetContainerEvents sends what the runtime tells of its containers and what it does not
// tell, until ctx ends: runtimes and what stands before them may have no stream of events, or
// one that nothing comes by, and drop those of who is behind. What it has is listed, and what
// has changed without a word is an event too.
func (r *Runtime) GetContainerEvents(
	ctx context.Context, to chan *criv1.ContainerEventResponse,
	connected func(criv1.RuntimeService_GetContainerEventsClient),
) error {
	if connected != nil {
		connected(nil)
	}
	f := &follower{to: to, heard: make(chan struct{}, 1), known: map[string]known{}, told: map[string]bool{}}
	var wg sync.WaitGroup
	wg.Go(func() { r.listen(ctx, f) })
	wg.Go(func() { r.relist(ctx, f) })
	wg.Wait()
	return ctx.Err()
}

// listen passes on what the runtime tells.
func (r *Runtime) listen(ctx context.Context, f *follower) {
	told := make(chan *criv1.ContainerEventResponse, 64)
	pause, complained := firstPause, false
	for ctx.Err() == nil {
		began, ended := time.Now(), make(chan error, 1)
		var stream sync.WaitGroup
		stream.Go(func() { ended <- r.RuntimeService.GetContainerEvents(ctx, told, nil) })
		err := f.passOn(ctx, told, ended)
		stream.Wait()
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > lastPause {
			pause = firstPause
		}
		if !complained {
			r.log.Info("the container runtime's events have ended; its containers are listed meanwhile", "err", err)
			complained = true
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, lastPause)
	}
}

// relist looks for what the runtime has not told.
func (r *Runtime) relist(ctx context.Context, f *follower) {
	every, failing := often, false
	for {
		found, err := r.list(ctx, f)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !failing:
			r.log.Warn("the container runtime does not list what it has", "err", err)
			fallthrough
		case err != nil, found:
			every = often
		}
		failing = err != nil
		for due := time.After(every); due != nil; {
			select {
			case <-ctx.Done():
				return
			case <-f.heard:
				if every == often && !failing {
					every, due = seldom, time.After(seldom)
				}
			case <-due:
				due = nil
			}
		}
	}
}

// list compares what the runtime has with what is known, and tells whether there was news.
func (r *Runtime) list(ctx context.Context, f *follower) (found bool, err error) {
	f.begin()
	sandboxes, err := r.ListPodSandbox(ctx, nil)
	if err != nil {
		return false, err
	}
	containers, err := r.ListContainers(ctx, nil)
	if err != nil {
		return false, err
	}
	now := make(map[string]known, len(sandboxes)+len(containers))
	pods := make(map[string]*criv1.PodSandboxStatus, len(sandboxes))
	for _, s := range sandboxes {
		pods[s.Id] = &criv1.PodSandboxStatus{Id: s.Id, Metadata: s.Metadata}
		now[s.Id] = known{pods[s.Id], stateOfSandbox(s.State)}
	}
	for _, c := range containers {
		if p := pods[c.PodSandboxId]; p != nil {
			now[c.Id] = known{p, stateOfContainer(c.State)}
		}
	}
	return f.compare(ctx, now), nil
}

// state is the kind of event that tells of it.
type state = criv1.ContainerEventType

const (
	created = criv1.ContainerEventType_CONTAINER_CREATED_EVENT
	started = criv1.ContainerEventType_CONTAINER_STARTED_EVENT
	stopped = criv1.ContainerEventType_CONTAINER_STOPPED_EVENT
	deleted = criv1.ContainerEventType_CONTAINER_DELETED_EVENT
)

func stateOfSandbox(s criv1.PodSandboxState) state {
	if s == criv1.PodSandboxState_SANDBOX_READY {
		return started
	}
	return stopped
}

func stateOfContainer(s criv1.ContainerState) state {
	switch s {
	case criv1.ContainerState_CONTAINER_CREATED:
		return created
	case criv1.ContainerState_CONTAINER_RUNNING:
		return started
	}
	return stopped
}

// known is what is known of a container or a sandbox.
type known struct {
	pod   *criv1.PodSandboxStatus
	state state
}

// follower is who is told of a runtime's containers.
type follower struct {
	to    chan<- *criv1.ContainerEventResponse
	heard chan struct{} // there was an event

	mu    sync.Mutex
	known map[string]known
	// told are those of which the runtime has told since a list was asked for, which may be older.
	told map[string]bool
}

// passOn passes events on until their stream has ended.
func (f *follower) passOn(ctx context.Context, told <-chan *criv1.ContainerEventResponse, ended <-chan error) error {
	for {
		select {
		case err := <-ended:
			return err
		case e := <-told:
			f.take(e)
			f.send(ctx, e)
		}
	}
}

func (f *follower) take(e *criv1.ContainerEventResponse) {
	f.mu.Lock()
	if id := e.GetContainerId(); e.GetContainerEventType() == deleted {
		delete(f.known, id)
		f.told[id] = true
	} else if id != "" {
		f.known[id] = known{e.GetPodSandboxStatus(), e.GetContainerEventType()}
		f.told[id] = true
	}
	f.mu.Unlock()
	select {
	case f.heard <- struct{}{}:
	default:
	}
}

func (f *follower) send(ctx context.Context, e *criv1.ContainerEventResponse) {
	select {
	case f.to <- e:
	case <-ctx.Done():
	}
}

// begin is called before a list is asked for.
func (f *follower) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.told = map[string]bool{}
}

// compare tells of what is not known yet, and whether there was any.
func (f *follower) compare(ctx context.Context, now map[string]known) bool {
	var news []*criv1.ContainerEventResponse
	tell := func(id string, k known, s state) {
		news = append(news, &criv1.ContainerEventResponse{ContainerId: id, ContainerEventType: s,
			CreatedAt: time.Now().UnixNano(), PodSandboxStatus: k.pod})
	}
	f.mu.Lock()
	for id, k := range now {
		if was, ok := f.known[id]; !f.told[id] && (!ok || was.state != k.state) {
			f.known[id] = k
			tell(id, k, k.state)
		}
	}
	for id, k := range f.known {
		if _, ok := now[id]; !ok && !f.told[id] {
			delete(f.known, id)
			tell(id, k, deleted)
		}
	}
	f.mu.Unlock()
	for _, e := range news {
		f.send(ctx, e)
	}
	return len(news) > 0
}
