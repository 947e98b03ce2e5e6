package withdraw

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/agent/netns"
)

const (
	// quietPause is how often connections are looked at: the kernel tells nobody when a
	// server has answered.
	quietPause = 20 * time.Millisecond
	// restFactor times as long as a look took is rested: a pod may have very many sockets.
	restFactor = 10
	// activeFor is how long after its last packet a connection counts as in use.
	activeFor = 20 // ms
	// askedWithin is how long a client that has connected may take to say what it wants.
	askedWithin = 1000 // ms
)

// States of a TCP socket, as sock_diag(7) has them.
const (
	tcpEstablished = 1
	tcpSynRecv     = 3
	tcpCloseWait   = 8
)

// Quiet returns when the servers at ports of a network namespace ("" is this process's own)
// owe no answer on any of their TCP connections, or with ctx's error.
func Quiet(ctx context.Context, path string, ports []uint16) error {
	for {
		began := time.Now()
		busy, err := owing(path, ports)
		if err != nil {
			return fmt.Errorf("look at the connections in network namespace %q: %w", path, err)
		}
		if !busy {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(max(quietPause, restFactor*time.Since(began))):
		}
	}
}

func owing(path string, ports []uint16) (busy bool, err error) {
	look := func() error {
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			list, err := netlink.SocketDiagTCPInfo(family)
			if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
				return err
			}
			one := func(s *netlink.InetDiagTCPInfoResp) bool { return owes(s, ports) }
			busy = busy || err != nil || slices.ContainsFunc(list, one)
		}
		return nil
	}
	if path == "" {
		return busy, look()
	}
	err = netns.Do(path, look)
	return busy, err
}

// owes tells whether a server's side of a connection has something to answer: data came later
// than the last that was sent, or came and was not read, or something is on its way, or the
// client has just connected.
func owes(s *netlink.InetDiagTCPInfoResp, ports []uint16) bool {
	d := s.InetDiagMsg
	if d == nil || !slices.Contains(ports, d.ID.SourcePort) {
		return false
	}
	switch d.State {
	case tcpSynRecv:
		return true
	case tcpEstablished, tcpCloseWait:
	default:
		return false
	}
	t := s.TCPInfo
	if d.RQueue > 0 || d.WQueue > 0 || t == nil {
		return true
	}
	if t.Bytes_received == 0 && t.Last_data_recv < askedWithin {
		return true
	}
	return t.Last_data_recv < t.Last_data_sent || min(t.Last_data_recv, t.Last_data_sent) < activeFor
}
