package logind

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
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

// DropIn is what RaiseDelay writes: it is gone with the next start of the machine, and
// files of /etc count before it.
const DropIn = "/run/systemd/logind.conf.d/99-shoal-agent.conf"

// RaiseDelay has logind let a shutdown wait for as long as limit, in whole seconds, from now
// until the machine's next start. It returns once logind does, or ctx ends.
func (c *Client) RaiseDelay(ctx context.Context, limit time.Duration) error {
	// What a package has installed since logind began may be enough.
	if err := c.reload(ctx, limit); err == nil {
		return nil
	}
	text := fmt.Sprintf("# Of shoal-agent: as long as its pods have.\n[Login]\nInhibitDelayMaxSec=%d\n", seconds(limit))
	if err := os.MkdirAll(filepath.Dir(DropIn), 0o755); err != nil {
		return fmt.Errorf("tell logind: %w", err)
	}
	if err := os.WriteFile(DropIn, []byte(text), 0o644); err != nil {
		return fmt.Errorf("tell logind: %w", err)
	}
	return c.reload(ctx, limit)
}

func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// reload has logind read its files, which it does in its own time, and waits for limit.
func (c *Client) reload(ctx context.Context, limit time.Duration) error {
	const systemd = "org.freedesktop.systemd1"
	err := c.conn.Object(systemd, "/org/freedesktop/systemd1").CallWithContext(ctx, systemd+".Manager.KillUnit", 0,
		"systemd-logind.service", "main", int32(unix.SIGHUP)).Err
	if err != nil {
		return fmt.Errorf("have logind read its files: %w", err)
	}
	for range 20 {
		if has, err := c.MaxDelay(); err == nil && has >= limit {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	return errors.New("logind read its files, and has another limit of them")
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
