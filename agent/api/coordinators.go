package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// serverName is in the certificate of every coordinator. A node's cannot have it: the
// API server's names are reserved.
const serverName = "kubernetes.default.svc"

const (
	// maxKnown bounds the coordinators that a node remembers, maxKnownFile their file.
	maxKnown     = 16
	maxKnownFile = 4 << 10
	// nextAfter is how long one coordinator may take to be connected to until the next
	// one is tried beside it.
	nextAfter = time.Second
)

// Coordinator is one that the gossip tells of.
type Coordinator struct {
	// URL is where its API is: https://host:port.
	URL string
	// Dead holds when it does not answer, or is about to end.
	Dead bool
}

// coordinators are the places where the API may be served, and the connections there.
// The kubeconfig's comes first, for somebody chose it; the others in an order that
// differs from node to node, so that they share the nodes of one that fails.
type coordinators struct {
	own, ownName string // the kubeconfig's host:port, and the name in its certificate
	node         string
	file         string // keeps the others' addresses; empty: nothing is kept
	dial         func(ctx context.Context, network, address string) (net.Conn, error)

	mu     sync.Mutex
	others []place
	conns  map[*conn]struct{}
	// useless counts answers in a row that are of no use, doubted says until when others
	// are asked first; both by address.
	useless map[string]int
	doubted map[string]time.Time
	// waiting counts requests that wait for any of them; back is closed when one answers, and
	// nil while nobody looks.
	waiting int
	back    chan struct{}
}

type place struct {
	address, name string
	dead          bool
}

// conn is a connection that is closed when its coordinator dies.
type conn struct {
	net.Conn
	address string
	of      *coordinators
}

// Close ends the connection.
func (c *conn) Close() error {
	c.of.mu.Lock()
	delete(c.of.conns, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// restore takes the coordinators of the last run. A file that cannot be read is none:
// the gossip tells of them again.
func (c *coordinators) restore() {
	if c.file == "" {
		return
	}
	f, err := os.Open(c.file)
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxKnownFile))
	if err != nil {
		return
	}
	c.others = decodeKnown(data)
}

// decodeKnown reads the file of addresses; what is no address is passed over.
func decodeKnown(data []byte) (out []place) {
	var list []string
	if json.Unmarshal(data, &list) != nil {
		return nil
	}
	for _, address := range list[:min(len(list), maxKnown)] {
		if _, err := netip.ParseAddrPort(address); err == nil {
			out = append(out, place{address: address, name: serverName})
		}
	}
	return out
}

// set takes what the gossip says. Connections to the dead are closed, unless there is
// nobody else to turn to: the gossip may be wrong.
func (c *coordinators) set(list []Coordinator) {
	var next []place
	for _, one := range list {
		u, err := url.Parse(one.URL)
		if err != nil || u.Scheme != "https" || len(next) == maxKnown {
			continue
		}
		if _, err := netip.ParseAddrPort(u.Host); err != nil {
			continue
		}
		// A coordinator that was made anew has its address under two names.
		if i := slices.IndexFunc(next, func(p place) bool { return p.address == u.Host }); i >= 0 {
			next[i].dead = next[i].dead && one.Dead
		} else {
			next = append(next, place{address: u.Host, name: serverName, dead: one.Dead})
		}
	}
	if !slices.ContainsFunc(next, func(p place) bool { return !p.dead }) {
		return // the gossip is not found yet, or this machine is cut off
	}
	slices.SortFunc(next, func(a, b place) int { return cmp.Compare(a.address, b.address) })
	c.mu.Lock()
	changed := !slices.Equal(next, c.others)
	c.others = next
	lost := c.connectionsTo(func(address string) bool {
		return slices.ContainsFunc(next, func(p place) bool { return p.dead && p.address == address })
	})
	c.mu.Unlock()
	closeAll(lost)
	if changed {
		c.keep(next)
	}
}

// keep writes the addresses down for the next start. It is a help: a failure is no
// matter of anybody's.
func (c *coordinators) keep(list []place) {
	if c.file == "" {
		return
	}
	addresses := make([]string, len(list))
	for i, p := range list {
		addresses[i] = p.address
	}
	data, err := json.Marshal(addresses)
	if err == nil {
		_ = replaceFile(c.file, data)
	}
}

// replaceFile writes a file of root's as a whole.
func replaceFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // 0600
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// candidates are where to connect, in the order of preference: those come last that
// are doubted, and the dead.
func (c *coordinators) candidates(now time.Time) []place {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.places()
	worth := func(p place) int {
		switch {
		case p.dead:
			return 2
		case c.doubted[p.address].After(now):
			return 1
		}
		return 0
	}
	slices.SortStableFunc(list, func(a, b place) int { return cmp.Compare(worth(a), worth(b)) })
	return list
}

// places are the kubeconfig's and the others, in this node's order. The caller holds
// c.mu.
func (c *coordinators) places() []place {
	list := []place{{address: c.own, name: c.ownName}}
	for _, p := range c.others {
		if p.address != c.own {
			list = append(list, p)
		} else {
			list[0].dead = p.dead
		}
	}
	others := list[1:]
	slices.SortFunc(others, func(a, b place) int { return cmp.Compare(c.rank(a.address), c.rank(b.address)) })
	return list
}

// rank orders addresses for this node (rendezvous hashing).
func (c *coordinators) rank(address string) uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, c.node+" "+address)
	return h.Sum64()
}

// connect returns the first connection that stands and is verified.
func (c *coordinators) connect(ctx context.Context, network string,
	verify func(context.Context, net.Conn, string) (net.Conn, error)) (net.Conn, error) {
	return race(ctx, c.candidates(time.Now()), nextAfter, func(ctx context.Context, p place) (net.Conn, error) {
		raw, err := c.dial(ctx, network, p.address)
		if err != nil {
			return nil, err
		}
		held := &conn{raw, p.address, c}
		verified, err := verify(ctx, held, p.name)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", p.address, err), raw.Close())
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.conns[held] = struct{}{}
		return verified, nil
	})
}

type attempt struct {
	conn net.Conn
	err  error
}

// race connects to the first of list, to the next when that fails or takes long, and
// so on; the first that stands wins.
func race(ctx context.Context, list []place, after time.Duration,
	dial func(context.Context, place) (net.Conn, error)) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan attempt, len(list))
	started := 0
	start := func() {
		p := list[started]
		started++
		go func() {
			c, err := dial(ctx, p)
			results <- attempt{c, err}
		}()
	}
	start()
	var errs []error
	for {
		var late <-chan time.Time
		if started < len(list) {
			late = time.After(after)
		}
		select {
		case r := <-results:
			if r.err == nil {
				go closeLater(results, started-len(errs)-1)
				return r.conn, nil
			}
			if errs = append(errs, r.err); started < len(list) {
				start()
			} else if len(errs) == started {
				return nil, errors.Join(errs...)
			}
		case <-late:
			start()
		case <-ctx.Done():
			go closeLater(results, started-len(errs))
			return nil, errors.Join(append(errs, ctx.Err())...)
		}
	}
}

// closeLater closes the connections that came too late.
func closeLater(results <-chan attempt, n int) {
	for range n {
		if r := <-results; r.conn != nil {
			_ = r.conn.Close()
		}
	}
}
