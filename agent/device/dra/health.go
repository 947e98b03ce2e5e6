package dra

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	drahealthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
)

const (
	// healthTimeout is how long a report counts that names no time of its own
	// (upstream: 30 s); maxHealthTimeout bounds the one it names.
	healthTimeout    = 30 * time.Second
	maxHealthTimeout = 24 * time.Hour
	// healthRetry is how long a driver whose stream ended is left alone (upstream: 5 s).
	healthRetry = 5 * time.Second
	// maxReports is of how many devices a driver may tell.
	maxReports = 10000
)

// deviceKey names a device of a driver.
type deviceKey struct{ pool, name string }

// report is what a driver said of a device.
type report struct {
	health  corev1.ResourceHealthStatus
	message string
	expires time.Time
}

// same tells whether two reports say the same.
func (r report) same(o report) bool { return r.health == o.health && r.message == o.message }

// follow reads what a driver tells of the health of its devices until ctx ends
// (KEP-4680). A driver that does not offer it is not asked again.
func (d *Drivers) follow(ctx context.Context, name string, one *driver) {
	for {
		err := d.listen(ctx, name, one)
		if status.Code(err) == codes.Unimplemented {
			return
		}
		d.report(name, one, nil, true) // what is not heard of is not known
		if ctx.Err() == nil && d.Log != nil {
			d.Log.Debug("the health of devices is not told", "driver", name, "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(healthRetry):
		}
	}
}

// listen reads one stream to its end.
func (d *Drivers) listen(ctx context.Context, name string, one *driver) error {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := drahealthv1alpha1.NewDRAResourceHealthClient(one.conn).
		NodeWatchResources(ctx, &drahealthv1alpha1.NodeWatchResourcesRequest{})
	if err != nil {
		cancel()
		return err
	}
	heard, ended := make(chan []*drahealthv1alpha1.DeviceHealth), make(chan error, 1)
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case heard <- r.GetDevices():
			case <-ctx.Done():
				ended <- ctx.Err()
				return
			}
		}
	}()
	var failed error
	expiry := time.NewTimer(maxHealthTimeout)
	defer expiry.Stop()
	for {
		select {
		case devices := <-heard:
			if len(devices) > maxReports {
				failed = fmt.Errorf("driver tells of %d devices, at most %d are taken", len(devices), maxReports)
				cancel()
				continue
			}
			expiry.Reset(d.report(name, one, devices, false))
		case <-expiry.C:
			expiry.Reset(d.report(name, one, nil, false))
		case err := <-ended:
			cancel()
			return errors.Join(failed, err)
		}
	}
}

// report takes what a driver says now of devices, and forgets what has expired, or all
// that was said before. Pods of devices for which something else is known now are told.
// It returns after how long the next report expires.
func (d *Drivers) report(name string, one *driver, devices []*drahealthv1alpha1.DeviceHealth,
	forget bool) time.Duration {
	now := time.Now()
	changed := sets.New[deviceKey]()
	next := maxHealthTimeout
	d.mu.Lock()
	for _, said := range devices {
		key := deviceKey{said.GetDevice().GetPoolName(), said.GetDevice().GetDeviceName()}
		r := reportOf(said, now)
		if old, known := one.health[key]; !known || !old.same(r) {
			changed.Insert(key)
		}
		if one.health == nil {
			one.health = map[deviceKey]report{}
		}
		one.health[key] = r
	}
	for key, r := range one.health {
		if left := r.expires.Sub(now); left > 0 && !forget {
			next = min(next, left)
			continue
		}
		delete(one.health, key)
		changed.Insert(key)
	}
	if len(one.health) > maxReports {
		one.health = nil // ever new names; the next report counts
	}
	told := d.HealthChanged
	d.mu.Unlock()
	if told != nil && len(changed) > 0 {
		told(name, func(pool, device string) bool { return changed.Has(deviceKey{pool, device}) })
	}
	return next
}

func reportOf(said *drahealthv1alpha1.DeviceHealth, now time.Time) report {
	r := report{health: corev1.ResourceHealthStatusUnknown, message: cut(said.GetMessage())}
	switch said.GetHealth() {
	case drahealthv1alpha1.HealthStatus_HEALTHY:
		r.health = corev1.ResourceHealthStatusHealthy
	case drahealthv1alpha1.HealthStatus_UNHEALTHY:
		r.health = corev1.ResourceHealthStatusUnhealthy
	}
	lasts := healthTimeout
	if s := said.GetHealthCheckTimeoutSeconds(); s > 0 {
		lasts = time.Duration(min(s, int64(maxHealthTimeout/time.Second))) * time.Second
	}
	r.expires = now.Add(lasts)
	return r
}

// cut shortens a message to what the API takes, between two characters.
func cut(message string) string {
	if len(message) <= corev1.ResourceHealthMessageMaxLength {
		return message
	}
	end := corev1.ResourceHealthMessageMaxLength - len("...")
	for end > 0 && !utf8.RuneStart(message[end]) {
		end--
	}
	return message[:end] + "..."
}

// healthOf is what is known of a device: what the newest instance of its driver said
// that says anything of it.
func (d *Drivers) healthOf(name string, key deviceKey) report {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range slices.Backward(d.known[name]) {
		if r, ok := one.health[key]; ok && time.Now().Before(r.expires) {
			return r
		}
	}
	return report{health: corev1.ResourceHealthStatusUnknown}
}

// Health is what is known of the devices of a container, by its claims as its status
// names them: "claim:NAME" or "claim:NAME/REQUEST".
func (m *Manager) Health(p *corev1.Pod, container *corev1.Container) (out []corev1.ResourceStatus) {
	for _, wanted := range container.Resources.Claims {
		i := slices.IndexFunc(p.Spec.ResourceClaims,
			func(c corev1.PodResourceClaim) bool { return c.Name == wanted.Name })
		if i < 0 {
			continue
		}
		name, _, err := resourceclaim.Name(p, &p.Spec.ResourceClaims[i])
		if err != nil || name == nil {
			continue
		}
		c := m.of(p, *name)
		if c == nil {
			continue
		}
		s := corev1.ResourceStatus{Name: corev1.ResourceName("claim:" + wanted.Name)}
		if wanted.Request != "" {
			s.Name += corev1.ResourceName("/" + wanted.Request)
		}
		if s.Resources = m.healthOf(c, wanted.Request); len(s.Resources) > 0 &&
			!slices.ContainsFunc(out, func(o corev1.ResourceStatus) bool { return o.Name == s.Name }) {
			out = append(out, s)
		}
	}
	return out
}

// healthOf is what is known of the devices for a request of a claim; "": of all.
func (m *Manager) healthOf(c *Claim, request string) (out []corev1.ResourceHealth) {
	seen := sets.New[corev1.ResourceID]()
	for _, driver := range c.Drivers {
		for i := range c.Prepared[driver] {
			device := &c.Prepared[driver][i]
			if !device.serves(request) {
				continue
			}
			id := corev1.ResourceID(strings.Join([]string{driver, device.Pool, device.Name}, "/"))
			if len(device.CDI) > 0 {
				id = corev1.ResourceID(device.CDI[0])
			}
			if seen.Has(id) {
				continue
			}
			seen.Insert(id)
			r := m.Drivers.healthOf(driver, deviceKey{device.Pool, device.Name})
			h := corev1.ResourceHealth{ResourceID: id, Health: r.health}
			if r.message != "" {
				h.Message = &r.message
			}
			out = append(out, h)
		}
	}
	return out
}

// Follow has poke called with each pod of which a device is said to be in another state
// than before. It is called once, before drivers register.
func (m *Manager) Follow(poke func(pod types.UID)) {
	m.Drivers.HealthChanged = func(driver string, changed func(pool, device string) bool) {
		pods := sets.New[types.UID]()
		m.mu.Lock()
		for _, c := range m.known {
			if slices.ContainsFunc(c.Prepared[driver], func(d Device) bool { return changed(d.Pool, d.Name) }) {
				pods.Insert(c.Pods...)
			}
		}
		m.mu.Unlock()
		for _, uid := range sets.List(pods) {
			poke(uid)
		}
	}
}
