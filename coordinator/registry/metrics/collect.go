package metrics

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/coordinator/kubelet"
)

const (
	// keep is how long an answer serves. Autoscalers ask every 15 s, and each
	// time get new numbers.
	keep = 10 * time.Second
	// maxWindow is the longest time that a rate is taken over; an older sample
	// tells of another time. It is also how long samples stay when nobody asks.
	maxWindow = time.Minute
	// pause is between the two samples of a node that nothing is known of.
	pause = time.Second
	// patience is how long all nodes together may take to answer.
	patience = 8 * time.Second
	// atOnce bounds how many nodes are asked at a time.
	atOnce = 64
)

// collector asks nodes what they use. Its zero value with a transport is ready.
type collector struct {
	transport func(node string) http.RoundTripper

	mu     sync.Mutex
	nodes  map[string]*series
	forget *time.Timer
}

// series are the last two samples of one node.
type series struct {
	asked time.Time // under the collector's lock
	// turn holds a token while somebody uses the rest: whoever asks for the same
	// node meanwhile waits, and then has the answer.
	turn     chan struct{}
	old, now *sample
	failed   time.Time
}

// collect returns what is known of nodes, by name. One that does not answer in
// time is left out.
func (c *collector) collect(ctx context.Context, nodes []*corev1.Node) map[string]pair {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var mu sync.Mutex
	out := map[string]pair{}
	var g errgroup.Group
	g.SetLimit(atOnce)
	for _, n := range nodes {
		s := c.series(n.Name, time.Now())
		g.Go(func() error {
			if p, ok := s.measure(ctx, func() (*sample, error) { return c.ask(ctx, n) }); ok {
				mu.Lock()
				defer mu.Unlock()
				out[n.Name] = p
			}
			return nil
		})
	}
	_ = g.Wait()
	return out
}

// series returns the one of a node, and has what nobody asks for dropped.
func (c *collector) series(node string, now time.Time) *series {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nodes == nil {
		c.nodes = map[string]*series{}
	}
	s := c.nodes[node]
	if s == nil {
		s = &series{turn: make(chan struct{}, 1)}
		c.nodes[node] = s
	}
	s.asked = now
	if c.forget == nil {
		c.forget = time.AfterFunc(2*maxWindow, c.drop)
	}
	return s
}

// drop forgets the nodes that nobody has asked for lately.
func (c *collector) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, s := range c.nodes {
		if time.Since(s.asked) >= maxWindow {
			delete(c.nodes, name)
		}
	}
	c.forget = nil
	if len(c.nodes) > 0 {
		c.forget = time.AfterFunc(2*maxWindow, c.drop)
	}
}

// measure returns two samples, asking the node for those that are missing; false
// when it does not answer.
func (s *series) measure(ctx context.Context, ask func() (*sample, error)) (pair, bool) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return pair{}, false
	}
	now := time.Now()
	if s.old != nil && now.Sub(s.now.taken) < keep {
		return pair{s.old, s.now}, true
	}
	if now.Sub(s.failed) < keep {
		return pair{}, false
	}
	if s.now != nil && now.Sub(s.now.taken) > maxWindow {
		s.old, s.now = nil, nil
	}
	for range 2 {
		next, err := ask()
		if err != nil {
			if !errors.Is(ctx.Err(), context.Canceled) { // the client went away: not the node's fault
				s.failed = now
			}
			return pair{}, false
		}
		s.add(next)
		if s.old != nil {
			return pair{s.old, s.now}, true
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return pair{}, false
		}
	}
	return pair{}, false // the node measures less often than that
}

// add takes in the newest sample. One that was measured at the same time as the
// last, as by a kubelet with a cache of its own, only takes its place.
func (s *series) add(next *sample) {
	if s.now != nil && (s.now.node == nil || next.node == nil || next.node.time.After(s.now.node.time)) {
		s.old = s.now
	}
	s.now = next
}

// ask gets one sample from a node.
func (c *collector) ask(ctx context.Context, n *corev1.Node) (*sample, error) {
	host, err := kubelet.Address(n)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet,
		"https://"+host+"/stats/summary?only_cpu_and_memory=true", nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.transport(n.Name).RoundTrip(req) // follows no redirect
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask node %s for its stats: %s", n.Name, resp.Status)
	}
	return readSample(resp.Body, time.Now())
}
