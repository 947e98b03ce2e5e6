package cgroup

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/cgroups/v3/cgroup2"
	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/tests/dbustest"
)

// fakeSystemd is systemd on a bus of its own: units with their properties.
type fakeSystemd struct {
	mu    sync.Mutex
	units map[string]map[string]string
	bus   *dbustest.Bus
	jobs  uint32
}

// startSystemd makes the fake the one that clients in this process find.
func startSystemd(t *testing.T) *fakeSystemd {
	t.Helper()
	f := &fakeSystemd{units: map[string]map[string]string{}}
	f.bus = dbustest.Start(t, func(conn *dbus.Conn) error {
		for path, iface := range map[dbus.ObjectPath]string{
			"/org/freedesktop/DBus":     "org.freedesktop.DBus",
			"/org/freedesktop/systemd1": "org.freedesktop.systemd1.Manager",
		} {
			if err := conn.Export(f, path, iface); err != nil {
				return err
			}
		}
		return nil
	})
	return f
}

// Hello and AddMatch are the bus's own.
func (f *fakeSystemd) Hello() (string, *dbus.Error)         { return ":1.1", nil }
func (f *fakeSystemd) AddMatch(rule string) *dbus.Error     { return nil }
func (f *fakeSystemd) ResetFailedUnit(n string) *dbus.Error { return f.known(n) }

func (f *fakeSystemd) known(name string) *dbus.Error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.units[name] == nil {
		return dbus.NewError("org.freedesktop.systemd1.NoSuchUnit", []any{"Unit " + name + " not loaded."})
	}
	return nil
}

type fakeProperty struct {
	Name  string
	Value dbus.Variant
}

// StartTransientUnit refuses a unit that exists, as systemd does.
func (f *fakeSystemd) StartTransientUnit(name, _ string, props []fakeProperty, _ []struct {
	Name  string
	Props []fakeProperty
}) (dbus.ObjectPath, *dbus.Error) {
	if f.known(name) == nil {
		return "", dbus.NewError("org.freedesktop.systemd1.UnitExists", []any{"Unit " + name + " was already loaded."})
	}
	f.set(name, props)
	return f.job(name), nil
}

func (f *fakeSystemd) SetUnitProperties(name string, _ bool, props []fakeProperty) *dbus.Error {
	if err := f.known(name); err != nil {
		return err
	}
	f.set(name, props)
	return nil
}

func (f *fakeSystemd) StopUnit(name, _ string) (dbus.ObjectPath, *dbus.Error) {
	if err := f.known(name); err != nil {
		return "", err
	}
	f.mu.Lock()
	delete(f.units, name)
	f.mu.Unlock()
	return f.job(name), nil
}

func (f *fakeSystemd) set(name string, props []fakeProperty) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.units[name] == nil {
		f.units[name] = map[string]string{}
	}
	for _, p := range props {
		f.units[name][p.Name] = fmt.Sprint(p.Value.Value())
	}
}

// job is done at once; every connection hears so.
func (f *fakeSystemd) job(unit string) dbus.ObjectPath {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.jobs++
	path := dbus.ObjectPath(fmt.Sprintf("/org/freedesktop/systemd1/job/%d", f.jobs))
	f.bus.Emit("/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager.JobRemoved", f.jobs, path, unit, "done")
	return path
}

// show prints the units with some of their properties.
func (f *fakeSystemd) show(properties ...string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for _, name := range slices.Sorted(maps.Keys(f.units)) {
		line := name
		for _, p := range properties {
			if v, ok := f.units[name][p]; ok {
				line += " " + p + "=" + v
			}
		}
		out = append(out, line)
	}
	return strings.Join(out, "; ")
}

func TestUnitsOfAPod(t *testing.T) {
	f := startSystemd(t)
	u := &units{}
	limits := func(memory int64) []systemd.Property { return properties(Resources{MemoryLimit: &memory}) }
	for _, step := range []struct {
		what string
		do   func() error
		want string
	}{
		{"a pod starts", func() error { return u.ensure("pod1.slice", limits(64)) }, "pod1.slice MemoryMax=64"},
		{"again", func() error { return u.ensure("pod1.slice", limits(64)) }, "pod1.slice MemoryMax=64"},
		{"its monitor", func() error { return u.adopt("shoal-conmon-c1.scope", "pod1.slice", 1) },
			"pod1.slice MemoryMax=64; shoal-conmon-c1.scope Slice=pod1.slice PIDs=[1]"},
		{"a new limit", func() error { return u.set("pod1.slice", limits(128)) },
			"pod1.slice MemoryMax=128; shoal-conmon-c1.scope Slice=pod1.slice PIDs=[1]"},
		{"an agent that restarts", func() error { return (&units{}).ensure("pod1.slice", limits(128)) },
			"pod1.slice MemoryMax=128; shoal-conmon-c1.scope Slice=pod1.slice PIDs=[1]"},
		{"the monitor ends", func() error { return u.stop("shoal-conmon-c1.scope") }, "pod1.slice MemoryMax=128"},
		{"the pod ends", func() error { return u.stop("pod1.slice") }, ""},
		{"again", func() error { return u.stop("pod1.slice") }, ""},
	} {
		if err := step.do(); err != nil {
			t.Errorf("%s: %v", step.what, err)
		}
		if got := f.show("MemoryMax", "Slice", "PIDs"); got != step.want {
			t.Errorf("%s: %s, want %s", step.what, got, step.want)
		}
	}
}

// TestLibrarySystemd: a scope does not go into the slice it is meant for, a
// unit that exists keeps its limits, one that is gone cannot be stopped, and
// each call connects anew (units).
func TestLibrarySystemd(t *testing.T) {
	f := startSystemd(t)
	limit := func(memory int64) *cgroup2.Resources {
		return &cgroup2.Resources{Memory: &cgroup2.Memory{Max: ptr.To(memory)}}
	}
	for _, memory := range []int64{64, 128} {
		if _, err := cgroup2.NewSystemd("/", "pod1.slice", -1, limit(memory)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := cgroup2.NewSystemd("pod1.slice", "c1.scope", 1, limit(64)); err != nil {
		t.Fatal(err)
	}
	if got, want := f.show("MemoryMax",
		"Slice"), "c1.scope MemoryMax=64 Slice=system.slice; pod1.slice MemoryMax=64"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	m, err := cgroup2.LoadSystemd("/", "pod2.slice")
	if err != nil {
		t.Fatal(err)
	}
	if err := m.DeleteSystemd(); err == nil {
		t.Error("a unit that is not there was stopped")
	}
	if n := f.bus.Count(); n != 8 { // two a call
		t.Errorf("%d connections", n)
	}
}
