package api

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Retry is how soon a list or a watch is tried again. A watch that finds no coordinator
// waits for one and needs no pause.
func Retry() *wait.Backoff {
	return &wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 7, Cap: 10 * time.Second}
}

// How soon it is looked again whether a coordinator is back: often at first, then as
// seldom as a fleet of agents may ask one that has just started, each at its own time.
const (
	lookFirst = 100 * time.Millisecond
	lookLast  = 2 * time.Second
)

// unreachable tells whether a request found nobody to talk to. A certificate that is
// not valid, on either side, does not get better by waiting; crypto/tls tells the alert of
// the other side, and its own, as an operation on the network.
func unreachable(err error) bool {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Op != "remote error" && op.Op != "local error"
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// patient tells whether a request may wait until there is somebody to ask: a watch that
// nobody has set a time for. The library would try it again after a pause that grows, and
// a coordinator that has just started acts upon pods of whose changes this node knows
// nothing meanwhile: its Services lead to pods that have ended.
func patient(r *http.Request) bool {
	_, limited := r.Context().Deadline()
	return !limited && r.Method == http.MethodGet && strings.Contains(r.URL.RawQuery, "watch=true")
}

// wait returns when a connection to a coordinator can be made, or ctx ends. All who
// wait share one who looks.
func (c *coordinators) wait(ctx context.Context, connect func(context.Context) (net.Conn, error)) error {
	c.mu.Lock()
	if c.back == nil { // nobody looks
		c.back = make(chan struct{})
		go c.look(c.back, connect)
	}
	c.waiting++
	back := c.back
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.back == back {
			c.waiting--
		}
	}()
	select {
	case <-back:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// look tries to connect until it succeeds or nobody waits. Gossip tells of coordinators
// too, but only of those that are members, and not that they serve.
func (c *coordinators) look(back chan struct{}, connect func(context.Context) (net.Conn, error)) {
	for pause := lookFirst; ; pause = min(pause*3/2, lookLast) {
		time.Sleep(pause/2 + rand.N(pause))
		c.mu.Lock()
		idle := c.waiting == 0
		if idle {
			c.back = nil
		}
		c.mu.Unlock()
		if idle {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), connectTime+handshakeTime)
		conn, err := connect(ctx)
		cancel()
		if err != nil && unreachable(err) {
			continue
		}
		if err == nil {
			_ = conn.Close()
		}
		c.mu.Lock()
		c.waiting, c.back = 0, nil
		c.mu.Unlock()
		close(back) // they ask, and are told what is wrong if it is something else
		return
	}
}
