package logind

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/godbus/dbus/v5"
)

const (
	service = "org.freedesktop.login1"
	path    = "/org/freedesktop/login1"
	manager = "org.freedesktop.login1.Manager"
)

// Client is a connection to logind.
type Client struct{ conn *dbus.Conn }

// Connect opens the system bus.
func Connect(ctx context.Context) (*Client, error) {
	conn, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("connect to logind: %w", err)
	}
	return &Client{conn}, nil
}

// Close ends the connection and the inhibitor with it.
func (c *Client) Close() error { return c.conn.Close() }

// MaxDelay is how long logind lets a shutdown wait.
func (c *Client) MaxDelay() (time.Duration, error) {
	v, err := c.conn.Object(service, path).GetProperty(manager + ".InhibitDelayMaxUSec")
	if err != nil {
		return 0, fmt.Errorf("ask logind: %w", err)
	}
	us, ok := v.Value().(uint64)
	if !ok {
		return 0, fmt.Errorf("ask logind: InhibitDelayMaxUSec is %s", v.Signature())
	}
	return time.Duration(us) * time.Microsecond, nil
}

// Inhibit delays shutdowns until the file is closed.
func (c *Client) Inhibit(who, why string) (*os.File, error) {
	var fd dbus.UnixFD
	err := c.conn.Object(service, path).Call(manager+".Inhibit", 0, "shutdown", who, why, "delay").Store(&fd)
	if err != nil {
		return nil, fmt.Errorf("inhibit shutdown: %w", err)
	}
	return os.NewFile(uintptr(fd), "inhibitor"), nil
}

// Shutdowns returns a channel of true when a shutdown begins and false when it
// was called off. It closes with the connection.
func (c *Client) Shutdowns(ctx context.Context) (<-chan bool, error) {
	err := c.conn.AddMatchSignalContext(ctx, dbus.WithMatchObjectPath(path), dbus.WithMatchInterface(manager),
		dbus.WithMatchMember("PrepareForShutdown"))
	if err != nil {
		return nil, fmt.Errorf("hear of shutdowns: %w", err)
	}
	in := make(chan *dbus.Signal, 8)
	c.conn.Signal(in)
	out := make(chan bool)
	go func() {
		defer close(out)
		for {
			select {
			case <-ctx.Done():
				return
			case s, ok := <-in:
				if !ok {
					return
				}
				if len(s.Body) != 1 || s.Name != manager+".PrepareForShutdown" {
					continue
				}
				begins, ok := s.Body[0].(bool)
				if !ok {
					continue
				}
				select {
				case out <- begins:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return out, nil
}
