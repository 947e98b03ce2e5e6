package cgroup

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	"k8s.io/utils/cpuset"
)

// unitWait bounds one request to systemd; its jobs for slices and scopes take
// milliseconds.
const unitWait = 30 * time.Second

// units speaks to systemd. The connection is made when it is first needed
// and again after systemd or the bus was restarted.
type units struct {
	mu   sync.Mutex
	conn *systemd.Conn
}

func (u *units) connect(ctx context.Context) (*systemd.Conn, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.conn != nil && u.conn.Connected() {
		return u.conn, nil
	}
	conn, err := systemd.NewWithContext(context.WithoutCancel(ctx)) // it ends with its context
	if err != nil {
		return nil, fmt.Errorf("connect to systemd: %w", err)
	}
	u.conn = conn
	return conn, nil
}

// call does f with a connection, once more with a new one if it was lost.
func (u *units) call(f func(context.Context, *systemd.Conn) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), unitWait)
	defer cancel()
	for again := false; ; again = true {
		conn, err := u.connect(ctx)
		if err != nil {
			return err
		}
		err = f(ctx, conn)
		if again || !errors.Is(err, dbus.ErrClosed) {
			return err
		}
		u.drop(conn)
	}
}

func (u *units) drop(conn *systemd.Conn) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.conn == conn {
		u.conn = nil
	}
}

// job starts a job and waits for its end.
func (u *units) job(start func(context.Context, *systemd.Conn, chan<- string) (int, error)) error {
	return u.call(func(ctx context.Context, conn *systemd.Conn) error {
		done := make(chan string, 1)
		if _, err := start(ctx, conn, done); err != nil {
			return err
		}
		select {
		case result := <-done:
			if result != "done" {
				return fmt.Errorf("systemd's job ended as %s", result)
			}
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// ensure starts the unit or, when it runs, sets its limits.
func (u *units) ensure(name string, limits []systemd.Property) error {
	props := append([]systemd.Property{
		systemd.PropDescription("Kubernetes pods"),
		property("DefaultDependencies", false),
		property("MemoryAccounting", true), property("CPUAccounting", true),
		property("IOAccounting", true), property("TasksAccounting", true),
	}, limits...)
	err := u.job(func(ctx context.Context, conn *systemd.Conn, done chan<- string) (int, error) {
		return conn.StartTransientUnitContext(ctx, name, "replace", props, done)
	})
	if isError(err, "org.freedesktop.systemd1.UnitExists") {
		return u.set(name, limits)
	}
	return err
}

// set changes limits until the unit ends.
func (u *units) set(name string, limits []systemd.Property) error {
	if len(limits) == 0 {
		return nil
	}
	return u.call(func(ctx context.Context, conn *systemd.Conn) error {
		return conn.SetUnitPropertiesContext(ctx, name, true, limits...)
	})
}

// stop ends the unit and what lies in it. One that is not known is no error.
func (u *units) stop(name string) error {
	err := u.job(func(ctx context.Context, conn *systemd.Conn, done chan<- string) (int, error) {
		return conn.StopUnitContext(ctx, name, "replace", done)
	})
	if err != nil && !isError(err, "org.freedesktop.systemd1.NoSuchUnit") {
		return err
	}
	err = u.call(func(ctx context.Context, conn *systemd.Conn) error { return conn.ResetFailedUnitContext(ctx, name) })
	if err != nil && !isError(err, "org.freedesktop.systemd1.NoSuchUnit") {
		return err
	}
	return nil
}

// adopt puts a process into a scope of its own, which ends with it.
func (u *units) adopt(name, inSlice string, pid int) error {
	return u.job(func(ctx context.Context, conn *systemd.Conn, done chan<- string) (int, error) {
		return conn.StartTransientUnitContext(ctx, name, "replace", []systemd.Property{
			systemd.PropDescription("monitor of a container"), systemd.PropSlice(inSlice), systemd.PropPids(uint32(pid)),
			property("DefaultDependencies", false), property("Delegate", true), property("CollectMode", "inactive-or-failed"),
		}, done)
	})
}

func isError(err error, name string) bool {
	var e dbus.Error
	return errors.As(err, &e) && e.Name == name
}

func property(name string, value any) systemd.Property {
	return systemd.Property{Name: name, Value: dbus.MakeVariant(value)}
}

// isUnit tells whether systemd has a unit for the group.
func isUnit(group string) bool {
	return strings.HasSuffix(group, slice) || strings.HasSuffix(group, scope)
}

// properties are the limits that systemd knows and would undo when it applies
// its own view; the others it leaves alone.
func properties(res Resources) []systemd.Property {
	var out []systemd.Property
	if res.CPUShares != nil {
		out = append(out, property("CPUWeight", Weight(*res.CPUShares)))
	}
	if res.CPUQuota != nil {
		period := uint64(defaultPeriod)
		if res.CPUPeriod != nil && *res.CPUPeriod != 0 {
			period = *res.CPUPeriod
		}
		out = append(out, property("CPUQuotaPeriodUSec", period),
			property("CPUQuotaPerSecUSec", quotaPerSecond(*res.CPUQuota, period)))
	}
	if res.MemoryLimit != nil && *res.MemoryLimit != 0 {
		out = append(out, property("MemoryMax", infinite(*res.MemoryLimit)))
	}
	for name, v := range map[string]*int64{"MemoryMin": res.MemoryMin, "MemoryLow": res.MemoryLow} {
		if v != nil {
			out = append(out, property(name, uint64(*v)))
		}
	}
	if res.PidsLimit != nil {
		out = append(out, property("TasksMax", infinite(*res.PidsLimit)))
	}
	if res.IOWeight != nil {
		out = append(out, property("IOWeight", *res.IOWeight))
	}
	for file, name := range unitFiles {
		if value, set := res.Unified[file]; set {
			out = append(out, property(name, bytesOf(value)))
		}
	}
	for name, list := range map[string]string{"AllowedCPUs": res.CpusetCpus, "AllowedMemoryNodes": res.CpusetMems} {
		if bits := mask(list); len(bits) > 0 {
			out = append(out, property(name, bits))
		}
	}
	return out
}

// unitFiles are control files that systemd writes for units, with what it was told of them:
// what only the file says is gone after the next daemon-reload.
var unitFiles = map[string]string{
	"memory.high":     "MemoryHigh",
	"memory.low":      "MemoryLow",
	"memory.min":      "MemoryMin",
	"memory.swap.max": "MemorySwapMax",
}

// bytesOf is what a control file's value is for systemd; no number is no limit.
func bytesOf(value string) uint64 {
	if n, err := strconv.ParseUint(value, 10, 64); err == nil {
		return n
	}
	return math.MaxUint64
}

// mask is a list of numbers as systemd takes it: a bit for each, the lowest first.
func mask(list string) (out []byte) {
	set, err := cpuset.Parse(list)
	if err != nil {
		return nil // the kernel, which is told too, says what is wrong
	}
	for _, n := range set.List() {
		for len(out) <= n/8 {
			out = append(out, 0)
		}
		out[n/8] |= 1 << (n % 8)
	}
	return out
}

// quotaPerSecond is CPU time in microseconds a second. systemd rounds to
// whole centiseconds, down; a container shall rather get more than less.
func quotaPerSecond(quota int64, period uint64) uint64 {
	if quota <= 0 {
		return math.MaxUint64
	}
	us := uint64(quota) * 1000000 / period
	return (us + 9999) / 10000 * 10000
}

func infinite(v int64) uint64 {
	if v <= 0 {
		return math.MaxUint64
	}
	return uint64(v)
}

func unitName(group string) string { return path.Base(group) }
