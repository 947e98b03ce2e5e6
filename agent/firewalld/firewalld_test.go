package firewalld

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-project/shoal/cni/cidr"
	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.CheckOurs(m) }

// log is what the opening says.
type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// says waits until a text is logged.
func (l *log) says(t *testing.T, text string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(l.String(), text); {
		if time.Now().After(deadline) {
			t.Fatalf("said %s", l)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func config(said *log) Config {
	return Config{
		Bridge:  "shoal0",
		Pods:    cidr.Parse("10.244.0.0/16,fd00:10:244::/56"),
		DNS:     []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:10:96::a")},
		Uplinks: func() ([]string, error) { return []string{"eth0", "eth1"}, nil },
		Log:     slog.New(slog.NewTextHandler(said, nil)),
	}
}

// run runs an opening until the test ends, and returns what it logs.
func run(t *testing.T, change func(*Config)) (*Opening, *log) {
	o, said, stop := begin(t, change)
	t.Cleanup(stop)
	return o, said
}

// begin runs one until it is stopped.
func begin(t *testing.T, change func(*Config)) (o *Opening, said *log, stop func()) {
	said = &log{}
	c := config(said)
	if change != nil {
		change(&c)
	}
	o = New(c)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- o.Run(ctx) }()
	return o, said, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// becomes waits until firewalld holds what it should.
func (f *fake) becomes(t *testing.T, want string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); f.String() != want; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("(-want +got)\n%s", cmp.Diff(want, f.String()))
		}
	}
}

const (
	names = `rule family="ipv4" source address="10.244.0.0/16" destination address="10.96.0.10" port port="53" protocol="tcp" accept
rule family="ipv4" source address="10.244.0.0/16" destination address="10.96.0.10" port port="53" protocol="udp" accept
rule family="ipv6" source address="fd00:10:244::/56" destination address="fd00:10:96::a" port port="53" protocol="tcp" accept
rule family="ipv6" source address="fd00:10:244::/56" destination address="fd00:10:96::a" port port="53" protocol="udp" accept
`
	nothing = "internal: \npublic: \n"
	opened  = "internal: \npublic: eth0 eth1 shoal0+\n" + names
)

// What firewalld forgets when it is reloaded, or starts again, is opened again.
func TestOpen(t *testing.T) {
	f := start(t, true)
	o, said := run(t, nil)
	o.Open()
	f.becomes(t, opened)
	f.set(f.empty)
	f.bus.Emit(objectPath, reloaded)
	f.becomes(t, opened)
	if n := strings.Count(said.String(), "lets pods through"); n > 1 || strings.Contains(said.String(), "WARN") {
		t.Errorf("said:\n%s", said)
	}

	f.set(func() { f.running = false; f.empty() })
	f.bus.Emit("/org/freedesktop/DBus", nameChanged, service, ":1.1", "")
	f.set(func() { f.running = true })
	f.bus.Emit("/org/freedesktop/DBus", nameChanged, service, "", ":1.2")
	f.becomes(t, opened)
	if err := o.Close(); err != nil {
		t.Error(err)
	}
	f.becomes(t, nothing)
	f.bus.Emit(objectPath, reloaded)
	o.Open()
	f.becomes(t, opened)
}

// Without firewalld nobody asks for anything, and it is opened when it comes.
func TestComesLater(t *testing.T) {
	f := start(t, false)
	o, said := run(t, nil)
	o.Open()
	time.Sleep(100 * time.Millisecond)
	f.set(func() {
		if f.calls != 0 {
			t.Errorf("%d calls", f.calls)
		}
		f.running = true
	})
	if got := said.String(); got != "" {
		t.Errorf("said %s", got)
	}
	f.bus.Emit("/org/freedesktop/DBus", nameChanged, service, "", ":1.2")
	f.becomes(t, opened)
}

// As long as the network is not in use nothing is opened.
func TestNotWanted(t *testing.T) {
	f := start(t, true)
	run(t, nil)
	time.Sleep(50 * time.Millisecond)
	f.bus.Emit(objectPath, reloaded)
	time.Sleep(50 * time.Millisecond)
	f.becomes(t, nothing)
}

// The pods' interfaces are in the zone of the node's first one, wherever that goes.
func TestFollowsTheUplink(t *testing.T) {
	f := start(t, true)
	f.set(func() { f.files["eth0"] = "internal"; f.empty(); f.zones["public"].rules = []string{"another's"} })
	o, _ := run(t, nil)
	o.Open()
	f.becomes(t, "internal: eth0 shoal0+\n"+names+"public: eth1\nanother's\n")
	f.set(func() {
		z := f.zones["internal"]
		z.links = slices.DeleteFunc(z.links, func(l string) bool { return l == "eth0" })
		f.zones["public"].links = append(f.zones["public"].links, "eth0")
	})
	f.bus.Emit(objectPath, interfaceMoved, "public", "eth0")
	f.becomes(t, "internal: \npublic: eth0 eth1 shoal0+\nanother's\n"+names)
}

// What the administrator says of the bridge holds.
func TestSomebodyElsesZone(t *testing.T) {
	f := start(t, true)
	o, said := run(t, nil)
	o.Open()
	f.becomes(t, opened)
	f.set(func() { f.zones["internal"].links = []string{"shoal0"} })
	f.bus.Emit(objectPath, interfaceAdded, "internal", "shoal0")
	f.becomes(t, "internal: shoal0\npublic: \n")
	said.says(t, "in the zone internal, where somebody put it")
}

// A zone that forwards nothing is told, with what helps.
func TestZoneThatForwardsNothing(t *testing.T) {
	f := start(t, true)
	f.set(func() { f.zones["public"].closed = true })
	o, said := run(t, nil)
	o.Open()
	f.becomes(t, opened)
	said.says(t, "--zone=public --add-forward")
}

// Close takes back what was opened, and what another process opened before; interfaces
// that others put into a zone stay there.
func TestClose(t *testing.T) {
	f := start(t, true)
	o, _, stop := begin(t, nil)
	o.Open()
	f.becomes(t, opened)
	stop()
	f.set(func() { f.files["eth1"] = "public" })
	if err := New(config(&log{})).Close(); err != nil {
		t.Error(err)
	}
	if got, want := f.String(), "internal: \npublic: eth1\n"; got != want {
		t.Errorf("got %s", got)
	}
	f.set(func() { f.manager = true })
	o, _ = run(t, nil)
	o.Open()
	f.becomes(t, opened)
	if err := o.Close(); err != nil {
		t.Error(err)
	}
	if got, want := f.String(), "internal: \npublic: eth0 eth1\n"; got != want {
		t.Errorf("with NetworkManager: got %s", got)
	}
}

// hostFirewall: leave takes back what was opened before it.
func TestLeave(t *testing.T) {
	f := start(t, true)
	o, _, stop := begin(t, nil)
	o.Open()
	f.becomes(t, opened)
	stop()
	other, _ := run(t, func(c *Config) { c.Leave = true })
	f.becomes(t, nothing)
	other.Open()
	f.bus.Emit(objectPath, reloaded)
	time.Sleep(50 * time.Millisecond)
	f.becomes(t, nothing)
}

// A machine without a bus has no firewalld.
func TestNoBus(t *testing.T) {
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+t.TempDir()+"/none")
	o, said := run(t, nil)
	o.Open()
	if err := o.Close(); err != nil {
		t.Error(err)
	}
	if got := said.String(); got != "" {
		t.Errorf("said %s", got)
	}
}
