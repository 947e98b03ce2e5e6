package gossip

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/hashicorp/memberlist"
)

// MembersPath is where an agent shows its view of the group: in the kubelet's API,
// and at ViewSocket in its run directory, which needs no API.
const (
	MembersPath = "/gossip/members"
	ViewSocket  = "gossip.sock"
)

// View is what one member tells of another, or of itself.
type View struct {
	Name  string    `json:"name"`
	Role  Role      `json:"role"`
	State State     `json:"state"`
	Since time.Time `json:"since"`
	Addr  string    `json:"addr"`
	Zone  string    `json:"zone,omitempty"`
	// RoundTrip is that of the last probe, in seconds; 0: none was answered yet.
	RoundTrip float64 `json:"roundTripSeconds,omitempty"`
	// Version, Pods and Pressure are as it answered the last probe.
	Version  string     `json:"version,omitempty"`
	Pods     *int       `json:"pods,omitempty"`
	Pressure []Pressure `json:"pressure,omitempty"`
	// SaidBy is whose word State is: the member's own, or that of the member which called
	// it dead.
	SaidBy string `json:"saidBy"`
	Local  bool   `json:"local,omitempty"` // who tells this
}

// View is Members with what only this member knows of them.
func (g *Group) View() []View {
	list := []View{}
	members := g.Members()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, m := range members {
		v := View{Name: m.Name, Role: m.Role, State: m.State, Since: m.Since, Zone: m.Zone,
			RoundTrip: g.trips[m.Name].Seconds(), Local: m.Local, SaidBy: g.saidBy(m)}
		if d, ok := g.digests[m.Name]; ok {
			v.Version, v.Pods, v.Pressure = d.Version, &d.Pods, d.Pressure
		}
		if m.Addr.IsValid() {
			v.Addr = m.Addr.String()
		}
		list = append(list, v)
	}
	return list
}

// saidBy is whose word a member's state is; the caller holds g.mu.
func (g *Group) saidBy(m Member) string {
	switch m.State {
	case StateDead:
		if who := g.accusers[m.Name]; who != "" {
			return who
		}
		return g.cfg.Name // it does not answer this member's probes
	case StateUnheard:
		return g.cfg.Name // as of its last run
	}
	return m.Name
}

// AckPayload implements memberlist.PingDelegate.
func (d delegate) AckPayload() []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.digest
}

// NotifyPingComplete keeps how long an answered probe took, and what it said.
func (d delegate) NotifyPingComplete(n *memberlist.Node, trip time.Duration, payload []byte) {
	said, ok := decodeDigest(payload)
	d.mu.Lock()
	defer d.mu.Unlock()
	if m, known := d.members[n.Name]; known && m.State.Up() {
		d.trips[n.Name] = trip
		if ok {
			d.digests[n.Name] = said
		}
	}
}

// Limits of a request at the socket: a path is all that it holds.
const (
	viewTimeout = 5 * time.Second
	viewHeaders = 4 << 10
)

// ServeView answers GET of MembersPath at a socket, for root alone, until ctx ends.
func (g *Group) ServeView(ctx context.Context, socket string) error {
	l, err := listenForRoot(socket)
	if err != nil {
		return fmt.Errorf("gossip: listen on %s: %w", socket, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+MembersPath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(g.View())
	})
	srv := &http.Server{Handler: mux, ReadTimeout: viewTimeout, WriteTimeout: viewTimeout,
		MaxHeaderBytes: viewHeaders}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("gossip: serve %s: %w", socket, err)
	}
	return nil
}

// listenForRoot takes the place of a socket that a killed process left.
func listenForRoot(socket string) (net.Listener, error) {
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}
