package api

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"time"
)

// A coordinator may live and be of no use: its store is on the side of a minority, or
// it answers nothing in time. After doubtAfter answers of that kind in a row another
// one is asked, for doubtFor.
const (
	doubtAfter = 2
	doubtFor   = 30 * time.Second
)

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	for {
		answer, used, err := t.try(r)
		if err == nil || used || !unreachable(err) || !patient(r) {
			return answer, err
		}
		if t.coordinators.wait(r.Context(), t.connect) != nil {
			return nil, err // it tells more than that the time is over
		}
	}
}

// try sends a request; used tells whether there was a connection for it.
func (t *transport) try(r *http.Request) (*http.Response, bool, error) {
	var used *conn
	trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		if c, ok := i.Conn.(*tls.Conn); ok {
			used, _ = c.NetConn().(*conn)
		}
	}}
	answer, err := t.current.Load().RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
	if used == nil || err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return answer, used != nil, err
	}
	useful := err == nil && answer.StatusCode != http.StatusServiceUnavailable
	if lost := t.coordinators.judge(used.address, useful, time.Now()); len(lost) > 0 {
		t.renew()
		// The last answer is still to be read: it says why.
		time.AfterFunc(lastWords, func() { closeAll(lost) })
	}
	return answer, true, err
}

// connect makes a connection with the credentials of now.
func (t *transport) connect(ctx context.Context) (net.Conn, error) {
	return t.current.Load().DialTLSContext(ctx, "tcp", "")
}

// lastWords is how long connections stay that are given up.
const lastWords = time.Second

func closeAll(list []*conn) {
	for _, held := range list {
		_ = held.Close()
	}
}

// judge counts answers that are of no use, and returns the connections to a coordinator
// that gives nothing else, if there is one to turn to.
func (c *coordinators) judge(address string, useful bool, now time.Time) []*conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	if useful {
		delete(c.useless, address)
		return nil
	}
	c.useless[address]++
	if c.useless[address] < doubtAfter || !c.another(address, now) {
		return nil
	}
	delete(c.useless, address)
	c.doubted[address] = now.Add(doubtFor)
	return c.connectionsTo(func(a string) bool { return a == address })
}

// another tells whether there is a coordinator that is neither dead nor doubted. The
// caller holds c.mu.
func (c *coordinators) another(address string, now time.Time) bool {
	return slices.ContainsFunc(c.places(), func(p place) bool {
		return p.address != address && !p.dead && !c.doubted[p.address].After(now)
	})
}

// connectionsTo are those to some addresses. The caller holds c.mu.
func (c *coordinators) connectionsTo(match func(address string) bool) (out []*conn) {
	for held := range c.conns {
		if match(held.address) {
			out = append(out, held)
		}
	}
	return out
}
