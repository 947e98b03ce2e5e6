package withdraw

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/shoal-project/shoal/agent/service"
)

// Config of a Manager.
type Config struct {
	// Members are the other nodes that live and answer questions about endpoints now, by
	// name; nil: this node is alone.
	Members func() []string
	// Ask asks one of them. Errors: it is not reached, or does not answer.
	Ask func(ctx context.Context, member string, question []byte) ([]byte, error)
	Log *slog.Logger
}

// Manager knows who still leads traffic to endpoints of this node.
type Manager struct {
	cfg Config

	mu sync.Mutex
	// programmed is what each Carrier of this node holds, nil while that is not known; without
	// one that carries nothing.
	programmed map[Carrier]*service.Tables
	waits      map[*wait]bool
	running    bool
	wake       chan struct{}
	silent     map[string]bool // members whose silence was told
}

// Carrier is what leads traffic to endpoints on a node.
type Carrier int

// The carriers.
const (
	Kernel   Carrier = iota // the proxy's nftables
	Gateways                // the proxy of Ingresses and Gateways, where one runs
)

// wait is for one pod.
type wait struct {
	endpoints []service.EndpointOf
	told      map[string]bool // members that have let go of all
	done      chan struct{}
}

const (
	// Others are asked again, after pauses that grow from firstPause to maxPause: they do not
	// say by themselves when their kernel has changed. Most have when they are asked first,
	// for all nodes hear of a change at the same time.
	firstPause = 20 * time.Millisecond
	maxPause   = 250 * time.Millisecond
	// askTime is how long one of them may take.
	askTime = time.Second
	// asked is how many are asked at one time.
	asked = 16
)

// New starts nothing.
func New(cfg Config) *Manager {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Manager{cfg: cfg, programmed: map[Carrier]*service.Tables{Kernel: nil}, waits: map[*wait]bool{},
		wake: make(chan struct{}, 1), silent: map[string]bool{}}
}

// Programmed tells what a carrier holds from now on; nil: it carries nothing.
func (m *Manager) Programmed(by Carrier, t *service.Tables) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t == nil {
		delete(m.programmed, by)
	} else {
		m.programmed[by] = t
	}
	if len(m.waits) > 0 {
		m.poke()
	}
}

// Unknown tells that a carrier holds what an agent of before gave it.
func (m *Manager) Unknown(by Carrier) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.programmed[by] = nil
}

// poke wakes the goroutine that asks; the caller holds m.mu.
func (m *Manager) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Answer answers another node's question; nil for what is none.
func (m *Manager) Answer(question []byte) []byte {
	list, err := parse(question)
	if err != nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]byte, 1, 1+len(list))
	out[0] = version
	for _, e := range list {
		if m.carries(e) {
			out = append(out, carried)
		} else {
			out = append(out, withdrawn)
		}
	}
	return out
}

// carries tells whether new connections are led to an endpoint, or may be, as by what an
// earlier agent made. The caller holds m.mu.
func (m *Manager) carries(e service.EndpointOf) bool {
	for _, t := range m.programmed {
		if t == nil || t.Carries(e) {
			return true
		}
	}
	return false
}

// Wait returns when no node leads new connections to any of the endpoints, but those for
// which there are no others, or with ctx's error.
func (m *Manager) Wait(ctx context.Context, endpoints []service.EndpointOf) error {
	if len(endpoints) == 0 {
		return nil
	}
	w := &wait{endpoints: endpoints, told: map[string]bool{}, done: make(chan struct{})}
	m.mu.Lock()
	m.waits[w] = true
	if !m.running {
		m.running = true
		go m.run()
	}
	m.poke()
	m.mu.Unlock()
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.waits, w)
	m.poke()
	return ctx.Err()
}

// run asks as long as somebody waits, for all of them at once.
func (m *Manager) run() {
	pause := firstPause
	for {
		here, ok := m.here()
		if !ok {
			return
		}
		m.round(here)
		var again <-chan time.Time // nil: until this node's kernel has changed
		if left := m.finish(here); left > 0 {
			again = time.After(pause)
		} else if len(here) > 0 {
			continue // perhaps nobody waits any more
		}
		select {
		case <-m.wake:
			pause = firstPause
		case <-again:
			pause = min(2*pause, maxPause)
		}
	}
}

// here are the waits whose endpoints this node has let go of; false when nobody waits.
func (m *Manager) here() (out []*wait, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.waits) == 0 {
		m.running = false
		return nil, false
	}
	for w := range m.waits {
		if !slices.ContainsFunc(w.endpoints, m.carries) {
			out = append(out, w)
		}
	}
	return out, true
}

// round asks each member once about what it has not let go of. Only the goroutine of run
// touches told.
func (m *Manager) round(waits []*wait) {
	if len(waits) == 0 {
		return
	}
	var eg errgroup.Group
	eg.SetLimit(asked)
	var mu sync.Mutex
	var heard []func() // after all have been asked: told is read meanwhile
	for _, member := range m.members() {
		var open []*wait
		for _, w := range waits {
			if !w.told[member] {
				open = append(open, w)
			}
		}
		if len(open) == 0 {
			continue
		}
		eg.Go(func() error {
			left, err := m.ask(member, open)
			mu.Lock()
			defer mu.Unlock()
			heard = append(heard, func() { m.heard(member, open, left, err) })
			return nil
		})
	}
	_ = eg.Wait()
	for _, f := range heard {
		f()
	}
}

func (m *Manager) members() []string {
	if m.cfg.Members == nil {
		return nil
	}
	return m.cfg.Members()
}

// ask returns the endpoints that a member still leads traffic to.
func (m *Manager) ask(member string, open []*wait) (left map[service.EndpointOf]bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), askTime)
	defer cancel()
	all := map[service.EndpointOf]bool{}
	for _, w := range open {
		for _, e := range w.endpoints {
			all[e] = true
		}
	}
	left = map[service.EndpointOf]bool{}
	for rest := slices.Collect(maps.Keys(all)); len(rest) > 0; {
		part := rest
		var question []byte
		question, rest = ask(part)
		part = part[:len(part)-len(rest)]
		answer, err := m.cfg.Ask(ctx, member, question)
		if err != nil {
			return nil, err
		}
		if len(answer) != 1+len(part) || answer[0] != version {
			return nil, errMalformed
		}
		for i, e := range part {
			if answer[1+i] != withdrawn {
				left[e] = true
			}
		}
	}
	return left, nil
}

// heard notes what a member said.
func (m *Manager) heard(member string, open []*wait, left map[service.EndpointOf]bool, err error) {
	if err != nil {
		if !m.silent[member] {
			m.silent[member] = true
			m.cfg.Log.Warn("a node does not say whether it still sends traffic to pods that end here; "+
				"they wait for it, within bounds", "member", member, "err", err)
		}
		return
	}
	delete(m.silent, member)
	for _, w := range open {
		if !slices.ContainsFunc(w.endpoints, func(e service.EndpointOf) bool { return left[e] }) {
			w.told[member] = true
		}
	}
}

// finish ends the waits that all members have answered, and returns how many are left.
func (m *Manager) finish(waits []*wait) (left int) {
	members := m.members()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range waits {
		if slices.ContainsFunc(members, func(name string) bool { return !w.told[name] }) {
			left++
			continue
		}
		if m.waits[w] {
			delete(m.waits, w)
			close(w.done)
		}
	}
	return left
}
