package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/shoal-project/shoal/cni/nstest"
	"github.com/shoal-project/shoal/cni/podnet"
)

// node is one whose pods get a new sandbox when the old one is outdated, unless they
// have ended.
type node struct {
	t       *testing.T
	m       *Manager
	changed chan struct{}
	stop    func()

	mu    sync.Mutex
	pods  map[string]podnet.Sandbox // ready, by UID
	ended map[string]bool
	made  []string // what was made anew, in order
}

// newNode is one whose directories do not exist yet, but for the plugins'.
func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{
		t:       t,
		m:       newManager(t),
		changed: make(chan struct{}, 100),
		pods:    map[string]podnet.Sandbox{},
		ended:   map[string]bool{},
	}
	n.m.log = slog.New(slog.NewTextHandler(t.Output(), nil))
	n.m.cfg.ConfDir = filepath.Join(n.m.cfg.ConfDir, "deep", "net.d")
	n.m.third.confDir = n.m.cfg.ConfDir
	if err := n.m.SetPodCIDRs([]netip.Prefix{netip.MustParsePrefix("10.244.3.0/24")}); err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err == nil {
		err = os.MkdirAll(n.m.cfg.BinDir, 0o755)
	}
	if err == nil {
		err = os.Symlink(exe, filepath.Join(n.m.cfg.BinDir, "fancy"))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("SHOAL_TEST_CALLS", filepath.Join(t.TempDir(), "calls"))
	return n
}

// follow begins, as an agent that starts.
func (n *node) follow() {
	ctx, cancel := context.WithCancel(n.t.Context())
	f := &follower{Manager: n.m, sandboxes: n, changed: func() { n.changed <- struct{}{} }, timing: timing{
		quiet: 10 * time.Millisecond,
		back:  20 * time.Millisecond,
		first: 10 * time.Millisecond,
		last:  10 * time.Millisecond,
		renew: time.Minute,
	}}
	ended := make(chan error, 1)
	go func() { ended <- f.run(ctx) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			n.t.Error(err)
		}
	})
	n.t.Cleanup(n.stop)
}

// Connected implements Sandboxes.
func (n *node) Connected() (ids []string, ready []podnet.Sandbox) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, uid := range slices.Sorted(keysOf(n.pods)) {
		ids, ready = append(ids, n.pods[uid].ID), append(ready, n.pods[uid])
	}
	return ids, ready
}

func keysOf(m map[string]podnet.Sandbox) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// Outdate implements Sandboxes, as a pod's worker answers it.
func (n *node) Outdate(id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for uid, s := range n.pods {
		if s.ID != id {
			continue
		}
		delete(n.pods, uid)
		if n.ended[uid] {
			return nil
		}
		go func() {
			if err := n.m.Teardown(context.Background(), s); err != nil {
				n.t.Error(err)
			}
			n.run(uid, id+"x")
		}()
		return nil
	}
	return fmt.Errorf("no sandbox %s", id)
}

// run makes a pod's sandbox, as long as the network changes under it.
func (n *node) run(uid, id string) {
	s := podnet.Sandbox{
		Namespace: "ns",
		Name:      uid,
		UID:       uid,
		ID:        id,
		IfName:    podnet.Interface,
		NetNS:     nstest.New(n.t),
		Network:   n.m.Name(),
	}
	if _, err := n.m.Setup(context.Background(), s); err != nil {
		n.t.Error(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pods[uid], n.made = s, append(n.made, id+" by "+s.Network)
}

// eventually waits for something to become true; the loop under test tells nobody of
// each of its steps.
func (n *node) eventually(what string, ok func() bool) {
	n.t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.t.Fatalf("%s: not in a minute; pods %v", what, n.made)
		}
	}
}

func (n *node) all() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []string
	for uid, s := range n.pods {
		out = append(out, uid+":"+s.Network)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (n *node) bridge() bool {
	_, err := net.InterfaceByName("shoal0")
	return err == nil
}

func (n *node) write(name, text string) {
	n.t.Helper()
	err := os.MkdirAll(n.m.cfg.ConfDir, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(n.m.cfg.ConfDir, name), []byte(text), 0o600)
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

const fancy = `{"cniVersion":"1.0.0","name":"NAME","plugins":[{"type":"fancy"}]}`

// TestNetworkArrives: a third party's network takes the place of the built-in one on
// a node whose pods run, and gives it back.
func TestNetworkArrives(t *testing.T) {
	n := newNode(t)
	n.run("a", "a1")
	n.run("b", "b1")
	n.run("c", "c1")
	n.ended["b"] = true
	n.follow()
	n.write("10-fancy.conflist", strings.ReplaceAll(fancy, "NAME", "fancy"))
	// Follow waits for each: who ends instead of coming back holds up nobody for ever.
	n.eventually("the first pod is connected anew", func() bool { return strings.Contains(n.all(), "a:fancy") })
	if n.bridge() {
		t.Error("the bridge is still there")
	}
	if list, err := netlink.RouteList(nil, netlink.FAMILY_V4); err != nil || len(list) > 0 {
		t.Errorf("routes are left: %v, %v", list, err)
	}
	n.eventually("it is the second one's turn", func() bool { return !strings.Contains(n.all(), "b:") })
	n.m.connected("b") // its time is over
	n.eventually("all are connected anew", func() bool { return n.all() == "a:fancy c:fancy" })
	if got := fmt.Sprint(n.made); got != "[a1 by (builtin) b1 by (builtin) c1 by (builtin) a1x by fancy c1x by fancy]" {
		t.Errorf("in the order %s", got)
	}

	// Another configuration of a third party's lets pods be; one that is half written
	// does not count.
	n.write("00-other.conflist", "{")
	n.write("10-fancy.conflist", "{")
	n.write("00-other.conflist", strings.ReplaceAll(fancy, "NAME", "other"))
	n.eventually("the other network is used", func() bool { return n.m.Name() == "other" })
	n.run("d", "d1")
	if got := n.all(); got != "a:fancy c:fancy d:other" {
		t.Errorf("got %s", got)
	}

	if err := os.RemoveAll(filepath.Dir(n.m.cfg.ConfDir)); err != nil {
		t.Fatal(err)
	}
	n.eventually("all are on the own network again", func() bool {
		return n.all() == "a:(builtin) c:(builtin) d:(builtin)"
	})
	if !n.bridge() {
		t.Error("there is no bridge")
	}
	for changes := 0; changes < 3; changes++ { // to each of the two, and back
		select {
		case <-n.changed:
		case <-time.After(time.Minute):
			t.Fatalf("the node was told of %d changes", changes)
		}
	}
}

// TestNetworkGoesForAMoment: an upgrade of a network that takes its configuration away
// meanwhile moves no pod, and no new one gets a network that goes again.
func TestNetworkGoesForAMoment(t *testing.T) {
	n := newNode(t)
	n.write("10-fancy.conflist", strings.ReplaceAll(fancy, "NAME", "fancy"))
	n.run("a", "a1")
	f := &follower{Manager: n.m, sandboxes: n, changed: func() {}, timing: timing{back: time.Hour}}
	if again := f.look(t.Context()); again != 0 || n.bridge() {
		t.Errorf("looks again after %v; bridge: %v", again, n.bridge())
	}
	file := filepath.Join(n.m.cfg.ConfDir, "10-fancy.conflist")
	if err := os.Rename(file, file+".old"); err != nil {
		t.Fatal(err)
	}
	if again := f.look(t.Context()); again <= 0 || again > time.Hour {
		t.Errorf("looks again after %v", again)
	}
	if err := n.m.Status(t.Context()); !errors.Is(err, ErrNotReady) {
		t.Errorf("status: %v", err)
	}
	pod := podnet.Sandbox{ID: "b1", IfName: podnet.Interface, NetNS: nstest.New(t), Network: n.m.Name()}
	if _, err := n.m.Setup(t.Context(), pod); !errors.Is(err, ErrNotReady) {
		t.Errorf("setup: %v", err)
	}
	if err := os.Rename(file+".old", file); err != nil {
		t.Fatal(err)
	}
	if again := f.look(t.Context()); again != 0 || n.all() != "a:fancy" || n.bridge() {
		t.Errorf("looks again after %v, pods %s, bridge: %v", again, n.all(), n.bridge())
	}
	if err := n.m.Status(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestNetworkWithoutPlugins: as long as its plugins are missing nothing is taken away.
func TestNetworkWithoutPlugins(t *testing.T) {
	n := newNode(t)
	n.run("a", "a1")
	n.write("10-fancy.conflist", `{"cniVersion":"1.0.0","name":"fancy","plugins":[{"type":"missing"}]}`)
	f := &follower{Manager: n.m, sandboxes: n, changed: func() {}, timing: usual}
	for _, want := range []time.Duration{usual.first, 2 * usual.first} {
		if again := f.look(t.Context()); again != want || !n.bridge() || n.all() != "a:(builtin)" {
			t.Errorf("looks again after %v, bridge: %v, pods %s", again, n.bridge(), n.all())
		}
	}
}

// TestPromisedToAnother: a sandbox that was written down for one network is not
// connected by another.
func TestPromisedToAnother(t *testing.T) {
	n := newNode(t)
	s := podnet.Sandbox{ID: "a1", IfName: podnet.Interface, NetNS: nstest.New(t), Network: "fancy"}
	if _, err := n.m.Setup(t.Context(), s); err == nil || !strings.Contains(err.Error(), "changed from fancy") {
		t.Errorf("got %v", err)
	}
}

// TestEarlierSandboxes: agents of before wrote no network down.
func TestEarlierSandboxes(t *testing.T) {
	n := newNode(t)
	own := podnet.Sandbox{ID: "a1", IfName: podnet.Interface, NetNS: nstest.New(t)}
	if _, err := n.m.Setup(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	n.write("10-fancy.conflist", strings.ReplaceAll(fancy, "NAME", "fancy"))
	third := podnet.Sandbox{ID: "b1", IfName: podnet.Interface, NetNS: nstest.New(t)}
	if _, err := n.m.Setup(t.Context(), third); err != nil {
		t.Fatal(err)
	}
	if a, b := n.m.madeBy(own), n.m.madeBy(third); a != Builtin || b != "fancy" {
		t.Errorf("got %s, %s", a, b)
	}
}

// TestNoNetwork: without a configuration there is none, and nothing is made for it.
func TestNoNetwork(t *testing.T) {
	dir := t.TempDir()
	m := New(Config{
		ConfDir:  dir,
		StateDir: filepath.Join(dir, "state"),
		CacheDir: filepath.Join(dir, "cache"),
		None:     true,
	})
	if err := m.SetPodCIDRs([]netip.Prefix{netip.MustParsePrefix("10.244.3.0/24")}); err != nil {
		t.Fatal(err)
	}
	if err := m.Status(t.Context()); !errors.Is(err, ErrNotReady) {
		t.Errorf("status: %v", err)
	}
	pod := podnet.Sandbox{ID: "a1", IfName: podnet.Interface, NetNS: nstest.New(t), Network: m.Name()}
	if _, err := m.Setup(t.Context(), pod); !errors.Is(err, ErrNotReady) {
		t.Errorf("setup: %v", err)
	}
	if _, err := net.InterfaceByName("shoal0"); err == nil {
		t.Error("there is a bridge")
	}
	if err := m.Teardown(t.Context(), pod); err != nil {
		t.Error(err)
	}
	conf := strings.ReplaceAll(fancy, "NAME", "fancy")
	if err := os.WriteFile(filepath.Join(dir, "10-fancy.conflist"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	m.third.again()
	if err := m.Status(t.Context()); err != nil || m.Name() != "fancy" {
		t.Errorf("with a configuration: %v, %s", err, m.Name())
	}
}

// TestHeldByThirdParty: a third party's network keeps an ended pod for a moment too,
// and its plugin still finds the namespace then.
func TestHeldByThirdParty(t *testing.T) {
	n := newNode(t)
	n.m.holds.time = time.Hour
	n.write("10-fancy.conflist", strings.ReplaceAll(fancy, "NAME", "fancy"))
	n.run("a", "a1")
	ports := podnet.Sandbox{
		ID:        "b1",
		IfName:    podnet.Interface,
		NetNS:     nstest.New(t),
		HostPorts: []podnet.HostPort{{HostPort: 8080, ContainerPort: 80}},
		Network:   "fancy",
	}
	if _, err := n.m.Setup(t.Context(), ports); err != nil {
		t.Fatal(err)
	}
	stop(t, n.m, n.pods["a"])
	stop(t, n.m, ports)
	calls := func() string {
		text, err := os.ReadFile(os.Getenv("SHOAL_TEST_CALLS"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(string(text), "\n", "; ")
	}
	if got, want := calls(), "ADD a1 ns; ADD b1 ns; DEL b1 ns; "; got != want {
		t.Errorf("while one is held: %s", got)
	}
	if err := n.m.Release(t.Context(), nil); err != nil {
		t.Error(err)
	}
	n.m.Close()
	if got, want := calls(), "ADD a1 ns; ADD b1 ns; DEL b1 ns; DEL a1 ns; "; got != want {
		t.Errorf("in the end: %s", got)
	}
	if ids := n.m.holds.ids(); len(ids) > 0 {
		t.Errorf("held: %v", ids)
	}
}
