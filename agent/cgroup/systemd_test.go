package cgroup

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/cgroups/v3/cgroup2"
	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	"k8s.io/utils/ptr"
)

// fakeSystemd is systemd on a bus of its own: units with their properties.
type fakeSystemd struct {
	mu    sync.Mutex
	units map[string]map[string]string
	conns []*dbus.Conn
	jobs  uint32
}

// startSystemd makes the fake the one that clients in this process find.
func startSystemd(t *testing.T) *fakeSystemd {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "bus")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+socket)
	f := &fakeSystemd{units: map[string]map[string]string{}}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if err := f.serve(c); err != nil {
				t.Error(err)
			}
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-served
		for _, c := range f.conns {
			c.Close()
		}
	})
	return f
}

// handshake lets godbus, which is a client, begin on the server's side too:
// what it says to authenticate is dropped, what it hears is canned.
type handshake struct {
	io.ReadWriteCloser
	in io.Reader
}

func (h *handshake) Read(p []byte) (int, error) { return h.in.Read(p) }

func (h *handshake) Write(p []byte) (int, error) {
	if text := string(p); text == "\x00" || strings.HasSuffix(text, "\r\n") {
		return len(p), nil
	}
	return h.ReadWriteCloser.Write(p)
}

func (f *fakeSystemd) serve(c net.Conn) error {
	in := bufio.NewReader(c)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return err
		}
		answer := map[string]string{
			"\x00AUTH\r\n":          "REJECTED EXTERNAL\r\n",
			"NEGOTIATE_UNIX_FD\r\n": "ERROR\r\n",
		}[line]
		if strings.HasPrefix(line, "AUTH EXTERNAL") {
			answer = "OK 0123456789abcdef0123456789abcdef\r\n"
		}
		if line == "BEGIN\r\n" {
			break
		}
		if _, err := io.WriteString(c, answer); err != nil {
			return err
		}
	}
	canned := strings.NewReader("REJECTED ANONYMOUS\r\nOK 0123456789abcdef0123456789abcdef\r\n")
	conn, err := dbus.NewConn(&handshake{ReadWriteCloser: c, in: io.MultiReader(canned, in)})
	if err != nil {
		return err
	}
	for path, iface := range map[dbus.ObjectPath]string{
		"/org/freedesktop/DBus":     "org.freedesktop.DBus",
		"/org/freedesktop/systemd1": "org.freedesktop.systemd1.Manager",
	} {
		if err := conn.Export(f, path, iface); err != nil {
			return err
		}
	}
	f.mu.Lock()
	f.conns = append(f.conns, conn)
	f.mu.Unlock()
	return conn.Auth([]dbus.Auth{dbus.AuthAnonymous()})
}

// connections is how many clients have come.
func (f *fakeSystemd) connections() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.conns)
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
	for _, c := range f.conns {
		_ = c.Emit("/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager.JobRemoved", f.jobs, path, unit, "done")
	}
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
	if n := f.connections(); n != 8 { // two a call
		t.Errorf("%d connections", n)
	}
}
