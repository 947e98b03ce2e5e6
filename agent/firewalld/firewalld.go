package firewalld

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/shoal-project/shoal/cni/cidr"
)

const (
	service    = "org.fedoraproject.FirewallD1"
	objectPath = "/org/fedoraproject/FirewallD1"
	zoneIface  = service + ".zone"

	bus             = "org.freedesktop.DBus"
	nameChanged     = bus + ".NameOwnerChanged"
	reloaded        = service + ".Reloaded"
	defaultZone     = service + ".DefaultZoneChanged"
	interfaceAdded  = zoneIface + ".InterfaceAdded"
	interfaceGone   = zoneIface + ".InterfaceRemoved"
	interfaceMoved  = zoneIface + ".ZoneOfInterfaceChanged"
	callTime        = time.Minute // a reload may hold an answer up
	reconnectEvery  = 30 * time.Second
	signalsInFlight = 16
)

// Config says for what firewalld is opened.
type Config struct {
	Bridge string        // of the pods; tunnels' interfaces have names that begin so
	Pods   cidr.Prefixes // all of the cluster's
	DNS    []netip.Addr  // where the node answers pods' questions for names
	// Uplinks names the interfaces by which the node reaches others; the first one's zone
	// is the pods'.
	Uplinks func() ([]string, error)
	// Leave opens nothing, and takes back what was opened before.
	Leave bool
	Log   *slog.Logger
}

// Opening keeps firewalld open as long as it is wanted. Its methods may be called at the
// same time.
type Opening struct {
	cfg    Config
	wake   chan struct{}
	wanted atomic.Bool
	failed atomic.Bool // at the last look

	asking sync.Mutex // held while firewalld is asked
	told   string
}

// New asks nothing yet.
func New(cfg Config) *Opening {
	return &Opening{cfg: cfg, wake: make(chan struct{}, 1)}
}

// Open has Run open firewalld, now or when it comes. It may be called often.
func (o *Opening) Open() {
	if o.cfg.Leave || o.wanted.Swap(true) && !o.failed.Load() {
		return
	}
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// Close takes back what was opened, by this process or one before it.
func (o *Opening) Close() error {
	o.wanted.Store(false)
	o.asking.Lock()
	defer o.asking.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	conn, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return nil // without a bus there is no firewalld
	}
	defer conn.Close()
	if err := (&peer{ctx, conn, &o.cfg}).close(); err != nil {
		return fmt.Errorf("take back what firewalld lets through: %w", err)
	}
	return nil
}

// Run opens firewalld, whenever it comes, while that is wanted. On a machine without a
// system bus it does nothing.
func (o *Opening) Run(ctx context.Context) error {
	if o.cfg.Leave {
		if err := o.Close(); err != nil {
			o.cfg.Log.Warn("firewalld is left alone from now on", "err", err)
		}
		<-ctx.Done()
		return nil
	}
	var pause <-chan time.Time
	for lost := false; ; lost = true {
		conn, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
		if err == nil {
			err = o.follow(ctx, conn)
		}
		if ctx.Err() == nil {
			o.cfg.Log.Debug("firewalld is not heard", "err", err)
		}
		if conn != nil || lost { // a bus that was there comes again
			pause = time.After(reconnectEvery)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-pause:
		}
	}
}

// follow is Run as long as a connection lasts.
func (o *Opening) follow(ctx context.Context, conn *dbus.Conn) error {
	defer conn.Close()
	signals := make(chan *dbus.Signal, signalsInFlight)
	conn.Signal(signals)
	for _, match := range [][]dbus.MatchOption{
		{dbus.WithMatchSender(bus), dbus.WithMatchInterface(bus), dbus.WithMatchMember("NameOwnerChanged"),
			dbus.WithMatchArg(0, service)},
		{dbus.WithMatchSender(service), dbus.WithMatchObjectPath(objectPath)},
	} {
		if err := conn.AddMatchSignalContext(ctx, match...); err != nil {
			return err
		}
	}
	for {
		o.sync(ctx, conn)
		for look := false; !look; {
			select {
			case <-ctx.Done():
				return nil
			case <-o.wake:
				look = true
			case s, more := <-signals:
				if !more {
					return errors.New("the connection ended")
				}
				look = o.matters(s)
			}
		}
	}
}

// matters tells whether a signal says that something may have to be opened again. What is
// done for one raises others, for which there is nothing to do any more.
func (o *Opening) matters(s *dbus.Signal) bool {
	switch s.Name {
	case reloaded, defaultZone, interfaceAdded, interfaceMoved, interfaceGone:
		return true
	case nameChanged:
		return len(s.Body) == 3 && s.Body[0] == service && s.Body[2] != "" // its new owner
	}
	return false
}

func (o *Opening) sync(ctx context.Context, conn *dbus.Conn) {
	o.asking.Lock()
	defer o.asking.Unlock()
	if !o.wanted.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	said, err := (&peer{ctx, conn, &o.cfg}).open()
	o.failed.Store(err != nil)
	if err != nil {
		said = "firewalld may not let pods through"
	}
	text := fmt.Sprint(said, err)
	if text == o.told {
		return
	}
	o.told = text
	switch {
	case err != nil:
		o.cfg.Log.Warn(said, "err", err)
	case said != "":
		o.cfg.Log.Info(said)
	}
}
