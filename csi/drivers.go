package csi

import (
	"context"
	"fmt"
	"sync"
	"time"

	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/util/wait"
)

// Drivers are those that registered on this node. Its methods may be called at
// the same time, for one driver one after another.
type Drivers struct {
	// Observe is told of each call to any driver; it may be nil.
	Observe Observe
	// Publish tells the cluster what a driver says of this node, Withdraw that it
	// is gone. An error of Publish is told to the driver.
	Publish  func(ctx context.Context, driver string, info NodeInfo) error
	Withdraw func(driver string)
	// Changed is called when a driver came or went; it may be nil.
	Changed func()

	mu      sync.Mutex
	drivers map[string]*registered
}

type registered struct {
	*Client
	version *utilversion.Version
}

// Register takes a driver. It can be called from the moment on that this node
// knows where it is, before the cluster does.
func (d *Drivers) Register(ctx context.Context, name, endpoint string, versions []string) error {
	version, err := highest(versions)
	if err != nil {
		return fmt.Errorf("plugin validation failed with err: validation failed for CSI Driver %s at endpoint %s: %w",
			name, endpoint, err)
	}
	client := &Client{Driver: name, Endpoint: endpoint, Observe: d.Observe}
	if err := d.add(name, &registered{client, version}); err != nil {
		return fmt.Errorf("plugin validation failed with err: validation failed for CSI Driver %s at endpoint %s: %w",
			name, endpoint, err)
	}
	d.tell()
	if err := d.publish(ctx, client); err != nil {
		d.Deregister(name, endpoint)
		return fmt.Errorf("plugin registration failed with err: %w", err)
	}
	return nil
}

// Keep has a driver found whose end is the agent's own: at once, and until ctx ends;
// that the cluster knows of it, is tried until it does.
func (d *Drivers) Keep(ctx context.Context, c *Client, version string, failed func(error)) error {
	v, err := highest([]string{version})
	if err != nil {
		return err
	}
	c.Observe = d.Observe
	if err := d.add(c.Driver, &registered{c, v}); err != nil {
		return err
	}
	d.tell()
	pause := wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.5, Steps: 6, Cap: time.Minute}
	for first := true; ; first = false {
		err := d.publish(ctx, c)
		if err == nil {
			break
		}
		if first && ctx.Err() == nil {
			failed(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause.Step()):
		}
	}
	<-ctx.Done()
	return nil
}

// highest is the highest version of CSI 1.
func highest(versions []string) (*utilversion.Version, error) {
	if len(versions) == 0 {
		return nil, fmt.Errorf("plugin returned an empty list for supported versions")
	}
	v, err := utilversion.HighestSupportedVersion(versions)
	if err != nil {
		return nil, fmt.Errorf("none of the versions specified %q are supported. err=%w", versions, err)
	}
	return v, nil
}

// add has a driver found by its name, unless another is there that is as new.
func (d *Drivers) add(name string, r *registered) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if old := d.drivers[name]; old != nil && !old.version.LessThan(r.version) {
		return fmt.Errorf("another driver with the same name is already registered with a higher supported version: %q",
			old.version)
	}
	if d.drivers == nil {
		d.drivers = map[string]*registered{}
	}
	d.drivers[name] = r
	return nil
}

func (d *Drivers) tell() {
	if d.Changed != nil {
		d.Changed()
	}
}

// Refresh asks a driver again what it says of this node.
func (d *Drivers) Refresh(ctx context.Context, name string) error {
	c, err := d.Client(name)
	if err != nil {
		return err
	}
	return d.publish(ctx, c)
}

func (d *Drivers) publish(ctx context.Context, c *Client) error {
	info, err := c.NodeInfo(ctx)
	if err != nil {
		return err
	}
	return d.Publish(ctx, c.Driver, info)
}

// Deregister forgets a driver, unless another took its place.
func (d *Drivers) Deregister(name, endpoint string) {
	d.mu.Lock()
	r := d.drivers[name]
	if r == nil || r.Endpoint != endpoint {
		d.mu.Unlock()
		return
	}
	delete(d.drivers, name)
	d.mu.Unlock()
	d.Withdraw(name)
	d.tell()
}

// Client finds a driver, with upstream's words where there is none.
func (d *Drivers) Client(name string) (*Client, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.drivers[name]; r != nil {
		return r.Client, nil
	}
	return nil, &NotRegisteredError{Driver: name}
}

// NotRegisteredError tells of a driver that is not there, or not yet.
type NotRegisteredError struct{ Driver string }

func (e *NotRegisteredError) Error() string {
	return fmt.Sprintf("driver name %s not found in the list of registered CSI drivers", e.Driver)
}

// Names are those of the drivers.
func (d *Drivers) Names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	names := make([]string, 0, len(d.drivers))
	for name := range d.drivers {
		names = append(names, name)
	}
	return names
}
