package network

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/shoal-project/shoal/agent/netns"
	"github.com/shoal-project/shoal/cni/podnet"
)

// Hold is how long a pod's address stays after its sandbox was stopped. A pod that
// is deleted leaves the endpoints before its containers are told to end, but other
// nodes' proxies hear of that by watches, and write their tables then: mostly
// within a second, upstream's at most once a second. A server that ends at once is
// sent connections until then. While its namespace is there, the kernel refuses
// them, and clients ask again; without it they would wait for an answer in vain.
const Hold = 3 * time.Second

// retryLast is the longest pause between tries to disconnect a pod.
const retryLast = 30 * time.Second

// delTime is how long it may take to disconnect one.
const delTime = 30 * time.Second

// holds are the sandboxes that are stopped and still connected. Nothing is kept of
// them: after a crash of the agent their addresses are free as of all sandboxes
// that are gone.
type holds struct {
	time time.Duration
	log  *slog.Logger

	mu  sync.Mutex
	all map[string]*hold // by sandbox ID
}

type hold struct {
	sandbox podnet.Sandbox
	// disconnect ends it; the sandbox's namespace is at another path by then.
	disconnect func(context.Context, podnet.Sandbox) error
	third      bool     // a third party's network has it
	ns         *os.File // keeps the namespace
	timer      *time.Timer
	once       sync.Once
	err        error // of disconnecting it
}

// begin keeps a sandbox connected for a while; false when it has no namespace any
// more.
func (h *holds) begin(e *hold) bool {
	s := &e.sandbox
	if h.time <= 0 || s.NetNS == "" {
		return false
	}
	if h.has(s.ID) {
		return true
	}
	ns, err := openNamespace(s.NetNS)
	if err != nil {
		return false
	}
	e.ns = ns
	// Its path goes with its sandbox. Plugins open it by this one.
	s.NetNS = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.Fd())
	h.add(e, h.time)
	return true
}

func (h *holds) has(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.all[id] != nil
}

func (h *holds) add(e *hold, after time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e.timer = time.AfterFunc(after, func() { h.expire(e, after) })
	h.all[e.sandbox.ID] = e
}

// expire ends a hold; what cannot be disconnected now is tried again.
func (h *holds) expire(e *hold, pause time.Duration) {
	if err := h.end(e); err != nil {
		h.log.Warn("a pod that has ended is not disconnected, trying again", "sandbox", e.sandbox.ID, "err", err)
		s := e.sandbox
		s.NetNS = "" // it was let go
		h.add(&hold{sandbox: s, disconnect: e.disconnect, third: e.third}, min(2*pause, retryLast))
	}
}

// end disconnects a sandbox; who comes second waits for the first.
func (h *holds) end(e *hold) error {
	e.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), delTime)
		defer cancel()
		e.err = e.disconnect(ctx, e.sandbox)
		h.forget(e)
	})
	return e.err
}

func (h *holds) forget(e *hold) {
	if e.ns != nil {
		e.ns.Close()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	e.timer.Stop()
	if h.all[e.sandbox.ID] == e {
		delete(h.all, e.sandbox.ID)
	}
}

// endEarly ends the holds that match, and tells how many there were.
func (h *holds) endEarly(match func(*hold) bool) int {
	h.mu.Lock()
	var list []*hold
	for _, e := range h.all {
		if match(e) {
			list = append(list, e)
		}
	}
	h.mu.Unlock()
	var wg sync.WaitGroup
	for _, e := range list {
		wg.Go(func() { h.expire(e, h.time) })
	}
	wg.Wait()
	return len(list)
}

// ids are those of the sandboxes that are held.
func (h *holds) ids() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	for id := range h.all {
		out = append(out, id)
	}
	return out
}

// anyHold matches all holds.
func anyHold(*hold) bool { return true }

// drop lets go of those on the own network without disconnecting them: it goes as a
// whole.
func (h *holds) drop() {
	h.mu.Lock()
	var list []*hold
	for _, e := range h.all {
		if !e.third {
			list = append(list, e)
		}
	}
	h.mu.Unlock()
	for _, e := range list {
		e.once.Do(func() {
			e.err = fmt.Errorf("sandbox %s: the network is being removed", e.sandbox.ID)
			h.forget(e)
		})
	}
}

// openNamespace opens a pinned namespace; after a reboot there may be a file that
// is none.
func openNamespace(path string) (*os.File, error) {
	if !netns.Exists(path) {
		return nil, fs.ErrNotExist
	}
	return os.Open(path)
}
