package gateway

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/shoal-project/shoal/agent/gatewaycontrol"
	"github.com/shoal-project/shoal/agent/gatewayfeed"
	"github.com/shoal-project/shoal/agent/service"
)

// Services are those that the node knows.
type Services interface {
	Tables() *service.Tables
	// Changed holds a token whenever Tables may answer differently.
	Changed() <-chan struct{}
}

// Config is what a Manager needs.
type Config struct {
	Feed     func(context.Context) (io.ReadCloser, error)
	Services Services
	Dir      string // of the control socket; root's alone
	Program  string // shoal-gateway
	// User and Group are the proxy's.
	User, Group uint32
	// HTTPPort and HTTPSPort are those of Ingresses; 0: not answered.
	HTTPPort, HTTPSPort uint16
	AccessLog           bool
	// Kept outlives a reboot; nil: after one, a coordinator must tell all anew. KeepKeys: what
	// has a certificate's key is kept too.
	Kept     Kept
	KeepKeys bool
	// Programmed hears of the tables that the proxy has from then on, nil: there is none.
	Programmed func(*service.Tables)
	// Unknown hears that there is a proxy of which nobody here knows what it has: that of an
	// agent before, or one that does not answer. Programmed and Unknown may both be nil.
	Unknown func()
	Log     *slog.Logger
}

// Manager runs the proxy. Its zero value is not ready; use New.
type Manager struct {
	cfg Config
	log *slog.Logger

	config   *gatewayfeed.Config
	sockets  map[string]*os.File
	refused  map[string]string // sockets that could not be made, with why
	sent     *gatewayfeed.Config
	backends map[string][]netip.AddrPort // as the proxy has them
	kept     map[string]bool             // the records that there are
	unkept   bool                        // that they cannot be written was told
	old      *connection                 // the proxy that the one now takes over from

	mu    sync.Mutex // of the connection: metrics are asked for from elsewhere
	proxy *connection
}

// New does nothing yet.
func New(c Config) *Manager {
	return &Manager{cfg: c, log: c.Log, sockets: map[string]*os.File{}, refused: map[string]string{},
		kept: map[string]bool{}}
}

// retryTime is how long after a failure the proxy is tried again.
const retryTime = time.Second

// lookTime is how often a proxy that runs is looked at: it may be of an agent before, whose
// end nobody tells.
const lookTime = 5 * time.Second

// Run does all until ctx ends; the proxy goes on.
func (m *Manager) Run(ctx context.Context) error {
	changed := m.cfg.Services.Changed()
	configs := make(chan *gatewayfeed.Config)
	var hearing sync.WaitGroup
	defer hearing.Wait()
	defer m.leave()
	var stopHearing context.CancelFunc // nil: nothing is heard
	defer func() {
		if stopHearing != nil {
			stopHearing()
		}
	}()
	m.restore()
	told := false
	look := time.NewTicker(lookTime)
	look.Stop() // there is nothing to look at
	var died <-chan struct{}
	var again, due <-chan time.Time // after a failure, and for a change
	var rested time.Time            // no change counts before
	heard := false                  // the configuration is not kept yet
	if m.adopt() {
		died = m.proxy.died
		look.Reset(lookTime)
	} else {
		m.tellNone()
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			if wait := time.Until(rested); wait > 0 {
				due = time.After(wait)
				continue
			}
		case m.config = <-configs:
			heard = true
			if wait := time.Until(rested); wait > 0 {
				due = time.After(wait)
				continue
			}
		case <-due:
		case <-look.C:
			if m.alive() {
				continue
			}
			m.log.Warn("the gateway proxy does not answer; it is started anew")
			m.drop()
		case <-died:
			m.log.Warn("the gateway proxy has ended; it is started again")
			m.drop()
			died, again = nil, time.After(retryTime)
			continue
		case <-again:
		}
		again, due = nil, nil
		tables := m.cfg.Services.Tables()
		if tables == nil {
			continue
		}
		switch wanted := tables.Gateways() > 0; {
		case wanted && stopHearing == nil:
			stopHearing = m.startHearing(ctx, &hearing, configs)
		case !wanted && (stopHearing != nil || m.proxy != nil || m.config != nil):
			if stopHearing != nil {
				stopHearing()
				stopHearing = nil
			}
			m.config, heard = &gatewayfeed.Config{}, true
		}
		if m.config == nil {
			continue
		}
		began := time.Now()
		if heard {
			heard = false
			m.keep()
		}
		err := m.apply(tables)
		rested = time.Now().Add(rest(time.Since(began)))
		if err != nil {
			if !told {
				told = true
				m.log.Error("the gateway proxy does not do what it should; trying on", "err", err)
			}
			m.drop()
			m.tellNone()
			again = time.After(retryTime)
		} else {
			told = false
			m.tell(tables)
			if len(m.refused) > 0 { // who has the port may leave it
				again = time.After(lookTime)
			}
		}
		if died = nil; m.proxy != nil {
			died = m.proxy.died
			look.Reset(lookTime)
		} else {
			look.Stop()
		}
	}
}

// startHearing hears coordinators until the function that it returns is called.
func (m *Manager) startHearing(ctx context.Context, w *sync.WaitGroup,
	out chan<- *gatewayfeed.Config) context.CancelFunc {
	ctx, stop := context.WithCancel(ctx)
	w.Go(func() { m.listen(ctx, out) })
	return stop
}

// alive tells whether the proxy answers.
func (m *Manager) alive() bool {
	if m.proxy == nil {
		return false
	}
	_, err := m.order(gatewaycontrol.Order{}, nil)
	return err == nil
}

// leave lets the proxy go on alone.
func (m *Manager) leave() {
	m.retire()
	m.drop()
	for _, f := range m.sockets {
		_ = f.Close()
	}
}

// drop forgets the connection; the sockets stay.
func (m *Manager) drop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.proxy != nil {
		m.proxy.close()
		m.proxy = nil
	}
	m.sent, m.backends = nil, nil
}

// tell tells which tables the proxy has.
func (m *Manager) tell(tables *service.Tables) {
	switch {
	case m.cfg.Programmed == nil:
	case m.proxy == nil:
		m.tellNone()
	default:
		m.cfg.Programmed(tables)
	}
}

// tellNone tells that no proxy leads traffic anywhere or, where one runs that is not at this
// agent's command, that nobody knows where it does.
func (m *Manager) tellNone() {
	switch {
	case m.cfg.Programmed == nil:
	case runs(m.cfg.Dir):
		m.cfg.Unknown()
	default:
		m.cfg.Programmed(nil)
	}
}

// adopt takes over the proxy of an agent before, with its sockets.
func (m *Manager) adopt() bool {
	c, hello, files, err := dial(m.cfg.Dir)
	if err != nil {
		return false
	}
	for i, name := range hello.Sockets {
		m.sockets[name] = files[i]
	}
	m.mu.Lock()
	m.proxy = watch(c, hello.Program)
	m.mu.Unlock()
	if m.cfg.Unknown != nil {
		m.cfg.Unknown()
	}
	return true
}

// apply has the proxy do what the configuration and the Services say.
func (m *Manager) apply(tables *service.Tables) error {
	if len(m.config.Ports) == 0 {
		return m.end()
	}
	if m.proxy != nil && m.proxy.program != gatewaycontrol.Program(m.cfg.Program) {
		if err := m.replace(); err != nil {
			return err
		}
	}
	if m.proxy == nil {
		if err := errors.Join(End(m.cfg.Dir), m.start()); err != nil { // one that does not answer has the sockets still
			return err
		}
	}
	o := gatewaycontrol.Order{AccessLog: m.cfg.AccessLog}
	if backends := addresses(m.config, tables); m.backends == nil || !reflect.DeepEqual(m.backends, backends) {
		o.Backends = backends
	}
	var files []*os.File
	anew := m.sent == nil // the proxy may have others, or none
	var made []string
	if anew || m.sent != m.config || len(m.refused) > 0 {
		made = m.open()
	}
	if anew || m.sent != m.config || len(made) > 0 {
		o.Config = m.config
		o.Keep = slices.Sorted(maps.Keys(m.sockets))
		for _, name := range o.Keep {
			if anew || slices.Contains(made, name) {
				o.Sockets = append(o.Sockets, name)
				files = append(files, m.sockets[name])
			}
		}
	}
	if o.Config == nil && o.Backends == nil {
		return nil
	}
	for len(files) > gatewaycontrol.MaxSockets {
		part := gatewaycontrol.Order{Sockets: o.Sockets[:gatewaycontrol.MaxSockets]}
		if _, err := m.order(part, files[:gatewaycontrol.MaxSockets]); err != nil {
			return err
		}
		o.Sockets, files = o.Sockets[gatewaycontrol.MaxSockets:], files[gatewaycontrol.MaxSockets:]
	}
	done, err := m.order(o, files)
	if err != nil {
		return err
	}
	m.retire()
	if o.Config != nil {
		m.sent = m.config
		if done.Fault != "" {
			m.log.Warn("part of what Gateways ask for does not work", "err", done.Fault[:min(len(done.Fault), 1024)])
		}
	}
	if o.Backends != nil {
		m.backends = o.Backends
	}
	return nil
}

func (m *Manager) order(o gatewaycontrol.Order, files []*os.File) (gatewaycontrol.Done, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.proxy == nil {
		return gatewaycontrol.Done{}, errors.New("it does not run")
	}
	return m.proxy.order(o, files)
}

// Metrics are the proxy's, in Prometheus' text format; none while it does not run.
func (m *Manager) Metrics(w io.Writer) error {
	m.mu.Lock()
	running := m.proxy != nil
	m.mu.Unlock()
	if !running {
		return nil
	}
	done, err := m.order(gatewaycontrol.Order{Metrics: true}, nil)
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, done.Metrics)
	return err
}

// end ends the proxy, and closes the sockets.
func (m *Manager) end() error {
	if m.proxy != nil {
		if _, err := m.order(gatewaycontrol.Order{End: true}, nil); err != nil {
			m.log.Warn("the gateway proxy was told to end, and did not hear it", "err", err)
		}
		m.drop()
	}
	for name, f := range m.sockets {
		_ = f.Close()
		delete(m.sockets, name)
	}
	return nil
}

// addresses are the pods behind the configuration's backends. A node that the gossip calls
// dead has none while there are others (package service).
func addresses(c *gatewayfeed.Config, t *service.Tables) map[string][]netip.AddrPort {
	out := map[string][]netip.AddrPort{}
	c.Backends(func(b *gatewayfeed.Backend, udp bool) {
		key := b.Key(udp)
		if _, done := out[key]; done || key == "" {
			return
		}
		out[key] = []netip.AddrPort{}
		s := t.Get(service.Key{Namespace: b.Namespace, Name: b.Service})
		if s == nil {
			return
		}
		protocol := "TCP"
		if udp {
			protocol = "UDP"
		}
		for _, p := range s.Ports {
			if p.Number == b.Port && p.Protocol == protocol {
				for _, to := range p.Cluster.Backends {
					out[key] = append(out[key], to.AddrPort)
				}
			}
		}
	})
	return out
}
