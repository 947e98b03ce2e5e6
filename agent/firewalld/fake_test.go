package firewalld

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/godbus/dbus/v5"
)

// fake is firewalld on a bus of its own.
type fake struct {
	mu      sync.Mutex
	running bool
	manager bool // NetworkManager is there
	zones   map[string]*zone
	files   map[string]string // the zone of an interface in firewalld's files
	calls   int
	served  []*dbus.Conn
}

// zone is what one holds at run time.
type zone struct {
	links, rules []string
	closed       bool // forwards nothing within itself
}

// start makes the fake the one that clients in this process find.
func start(t *testing.T, running bool) *fake {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "bus")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+socket)
	f := &fake{running: running, files: map[string]string{}}
	f.empty()
	done := make(chan struct{})
	go func() {
		defer close(done)
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
		<-done
		f.hangUp()
	})
	return f
}

// hangUp ends all connections.
func (f *fake) hangUp() {
	f.mu.Lock()
	list := f.served
	f.served = nil
	f.mu.Unlock()
	for _, c := range list {
		c.Close()
	}
}

// empty is what a reload leaves.
func (f *fake) empty() {
	f.zones = map[string]*zone{"public": {}, "internal": {}}
	for link, z := range f.files {
		f.zones[z].links = append(f.zones[z].links, link)
	}
}

// handshake lets godbus, which is a client, begin on the server's side too: what it says to
// authenticate is dropped, what it hears is made up.
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

func (f *fake) serve(c net.Conn) error {
	in := bufio.NewReader(c)
	for line := ""; line != "BEGIN\r\n"; {
		var err error
		if line, err = in.ReadString('\n'); err != nil {
			return err
		}
		answer := map[string]string{"\x00AUTH\r\n": "REJECTED EXTERNAL\r\n", "NEGOTIATE_UNIX_FD\r\n": "ERROR\r\n"}[line]
		if strings.HasPrefix(line, "AUTH EXTERNAL") {
			answer = "OK 0123456789abcdef0123456789abcdef\r\n"
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
	f.mu.Lock()
	f.served = append(f.served, conn)
	f.mu.Unlock()
	return conn.Auth([]dbus.Auth{dbus.AuthAnonymous()})
}

// tell raises a signal.
func (f *fake) tell(path dbus.ObjectPath, name string, args ...any) {
	f.mu.Lock()
	list := slices.Clone(f.served)
	f.mu.Unlock()
	for _, c := range list {
		_ = c.Emit(path, name, args...) // some have hung up
	}
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
	f.tell(objectPath, interfaceMoved, name, link)
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
