package firewalld

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/godbus/dbus/v5"

	"github.com/shoal-project/shoal/tests/dbustest"
)

// fake is firewalld on a bus of its own.
type fake struct {
	mu      sync.Mutex
	running bool
	manager bool // NetworkManager is there
	zones   map[string]*zone
	files   map[string]string // the zone of an interface in firewalld's files
	calls   int
	bus     *dbustest.Bus
}

// zone is what one holds at run time.
type zone struct {
	links, rules []string
	closed       bool // forwards nothing within itself
}

// start makes the fake the one that clients in this process find.
func start(t *testing.T, running bool) *fake {
	t.Helper()
	f := &fake{running: running, files: map[string]string{}}
	f.empty()
	f.bus = dbustest.Start(t, f.export)
	return f
}

// empty is what a reload leaves.
func (f *fake) empty() {
	f.zones = map[string]*zone{"public": {}, "internal": {}}
	for link, z := range f.files {
		f.zones[z].links = append(f.zones[z].links, link)
	}
}

func (f *fake) export(conn *dbus.Conn) error {
	for _, o := range []struct {
		path, iface string
		methods     map[string]any
	}{
		{"/org/freedesktop/DBus", bus, map[string]any{
			"Hello":        func() (string, *dbus.Error) { return ":1.1", nil },
			"AddMatch":     func(string) *dbus.Error { return nil },
			"NameHasOwner": f.nameHasOwner,
		}},
		{objectPath, service, map[string]any{
			"getDefaultZone": func() (string, *dbus.Error) { return "public", nil },
		}},
		{objectPath + "/config", service + ".config", map[string]any{
			"getZoneOfInterface": func(link string) (string, *dbus.Error) { return f.files[link], nil },
		}},
		{objectPath, zoneIface, map[string]any{
			"getZoneOfInterface": f.zoneOf, "changeZoneOfInterface": f.change, "removeInterface": f.remove,
			"getRichRules": f.richRules, "addRichRule": f.addRule, "removeRichRule": f.removeRule,
			"getZoneSettings2": f.settings,
		}},
	} {
		if err := conn.ExportMethodTable(o.methods, dbus.ObjectPath(o.path), o.iface); err != nil {
			return err
		}
	}
	return nil
}

// set changes the fake as others do.
func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fake) nameHasOwner(name string) (bool, *dbus.Error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return name == service && f.running || name == "org.freedesktop.NetworkManager" && f.manager, nil
}

// in calls with a zone; "" is the default one.
func (f *fake) in(name string, do func(*zone) *dbus.Error) (string, *dbus.Error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if name == "" {
		name = "public"
	}
	z := f.zones[name]
	if z == nil || !f.running {
		return "", dbus.NewError(service+".Exception", []any{"INVALID_ZONE: " + name})
	}
	return name, do(z)
}

func (f *fake) zoneOf(link string) (found string, err *dbus.Error) {
	_, err = f.in("", func(*zone) *dbus.Error {
		for name, z := range f.zones {
			if slices.Contains(z.links, link) {
				found = name
			}
		}
		return nil
	})
	return found, err
}

func (f *fake) change(name, link string) (string, *dbus.Error) {
	name, err := f.in(name, func(to *zone) *dbus.Error {
		for _, z := range f.zones {
			z.links = slices.DeleteFunc(z.links, func(l string) bool { return l == link })
		}
		to.links = append(to.links, link)
		return nil
	})
	f.bus.Emit(objectPath, interfaceMoved, name, link)
	return name, err
}

func (f *fake) remove(name, link string) (string, *dbus.Error) {
	return f.in(name, func(z *zone) *dbus.Error {
		if !slices.Contains(z.links, link) {
			return dbus.NewError(service+".Exception", []any{"UNKNOWN_INTERFACE: " + link})
		}
		z.links = slices.DeleteFunc(z.links, func(l string) bool { return l == link })
		return nil
	})
}

func (f *fake) richRules(name string) (list []string, err *dbus.Error) {
	_, err = f.in(name, func(z *zone) *dbus.Error { list = slices.Clone(z.rules); return nil })
	return list, err
}

func (f *fake) addRule(name, rule string, _ int32) (string, *dbus.Error) {
	return f.in(name, func(z *zone) *dbus.Error {
		if slices.Contains(z.rules, rule) {
			return dbus.NewError(service+".Exception", []any{"ALREADY_ENABLED: " + rule})
		}
		z.rules = append(z.rules, rule)
		return nil
	})
}

func (f *fake) removeRule(name, rule string) (string, *dbus.Error) {
	return f.in(name, func(z *zone) *dbus.Error {
		if !slices.Contains(z.rules, rule) {
			return dbus.NewError(service+".Exception", []any{"NOT_ENABLED: " + rule})
		}
		z.rules = slices.DeleteFunc(z.rules, func(r string) bool { return r == rule })
		return nil
	})
}

func (f *fake) settings(name string) (out map[string]dbus.Variant, err *dbus.Error) {
	_, err = f.in(name, func(z *zone) *dbus.Error {
		out = map[string]dbus.Variant{"forward": dbus.MakeVariant(!z.closed)}
		return nil
	})
	return out, err
}

// String is all that is not in the files.
func (f *fake) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var b strings.Builder
	for _, name := range []string{"internal", "public"} {
		z := f.zones[name]
		slices.Sort(z.links)
		slices.Sort(z.rules)
		fmt.Fprintf(&b, "%s: %s\n", name, strings.Join(z.links, " "))
		for _, r := range z.rules {
			fmt.Fprintln(&b, r)
		}
	}
	return b.String()
}
