package foreign

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

const (
	// settle is how long a change may take until it is told of: a ruleset is flushed
	// and loaded in several steps.
	settle = 50 * time.Millisecond
	// rest is how long nothing more is told then: a program that changes rules all the
	// time costs one look a second.
	rest = time.Second
)

// Watcher tells of changes. Its zero value with a Bridge is ready.
type Watcher struct {
	// Bridge is the name of the pod network's bridge; its other interfaces' names begin
	// with it.
	Bridge string

	rules, any listeners
	pause      time.Duration // 0: rest
}

// Rules returns a channel with a token whenever another program changed nftables. A nil
// watcher tells nothing.
func (w *Watcher) Rules() <-chan struct{} {
	if w == nil {
		return nil
	}
	return w.rules.add()
}

// Any is the same for whatever the pod network stands on: rules, interfaces, addresses,
// routes and switches.
func (w *Watcher) Any() <-chan struct{} {
	if w == nil {
		return nil
	}
	return w.any.add()
}

// listeners each get a token; who has one unread needs no other.
type listeners struct {
	mu  sync.Mutex
	all []chan struct{}
}

func (l *listeners) add() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := make(chan struct{}, 1)
	l.all = append(l.all, c)
	return c
}

func (l *listeners) tell() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.all {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// Run watches the network namespace of its caller until ctx ends. An error means that
// nothing is told: who looks from time to time finds out later.
func (w *Watcher) Run(ctx context.Context) error {
	name, err := os.ReadFile("/proc/self/comm") // the kernel tells the name of who changed something
	if err != nil {
		return err
	}
	own := strings.TrimSpace(string(name))
	rules, err := newSource("nftables", unix.NETLINK_NETFILTER, newGeneration, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return err
	}
	network, err := newSource("interfaces", unix.NETLINK_ROUTE, networkChange,
		unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE,
		unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF)
	if err != nil {
		rules.close()
		return err
	}
	eg, ctx := errgroup.WithContext(ctx)
	eg.Go(func() error {
		return rules.follow(ctx, func(m netlink.Message) bool { return byAnother(m, own) }, w.pause, &w.rules, &w.any)
	})
	eg.Go(func() error {
		return network.follow(ctx, func(m netlink.Message) bool { return concerns(m, w.Bridge) }, w.pause, &w.any)
	})
	return eg.Wait()
}

// source is a socket on which the kernel tells of one kind of changes.
type source struct {
	what string
	conn *netlink.Conn
}

func newSource(what string, protocol int, filter filter, groups ...uint) (*source, error) {
	fail := func(err error) (*source, error) { return nil, fmt.Errorf("watch changes of %s: %w", what, err) }
	program, err := filter.assemble()
	if err != nil {
		return fail(err)
	}
	conn, err := netlink.Dial(protocol, nil)
	if err != nil {
		return fail(err)
	}
	if err = conn.SetBPF(program); err == nil {
		for _, g := range groups {
			if err = errors.Join(err, conn.JoinGroup(uint32(g))); err != nil {
				break
			}
		}
	}
	if err != nil {
		_ = conn.Close()
		return fail(err)
	}
	return &source{what, conn}, nil
}

func (s *source) close() { _ = s.conn.Close() }

// follow tells listeners of messages that matter. What comes in its pauses waits in the
// socket; what does not fit there counts as one that matters.
func (s *source) follow(
	ctx context.Context, matters func(netlink.Message) bool, between time.Duration, to ...*listeners,
) error {
	defer context.AfterFunc(ctx, s.close)()
	defer s.close()
	for {
		messages, err := s.conn.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
		case err != nil:
			return fmt.Errorf("watch changes of %s: %w", s.what, err)
		case !slices.ContainsFunc(messages, matters):
			continue
		}
		if !pause(ctx, settle) {
			return nil
		}
		for _, l := range to {
			l.tell()
		}
		if !pause(ctx, cmp.Or(between, rest)) {
			return nil
		}
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
