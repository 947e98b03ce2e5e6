package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shoal-project/shoal/coordinator/pki"
)

// cluster is stores on one machine that are one cluster's.
type cluster struct {
	t      *testing.T
	keys   pki.Dir
	stores map[string]*Store
	dirs   map[string]string
	peers  map[string]Peers
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, keys: pki.Dir(t.TempDir()), stores: map[string]*Store{}, dirs: map[string]string{},
		peers: map[string]Peers{}}
	if err := c.keys.EnsurePeer([]net.IP{net.IPv4(127, 0, 0, 1)}, 0, time.Now()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for name := range c.stores {
			c.stop(name)
		}
	})
	return c
}

// at is how a member is reached; the port is its own over restarts.
func (c *cluster) at(name string, join ...string) Peers {
	p, ok := c.peers[name]
	if !ok {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			c.t.Fatal(err)
		}
		defer l.Close()
		p = Peers{
			Name: name, Listen: l.Addr().String(), URL: "https://" + l.Addr().String(),
			CAFile: c.keys.Path(pki.PeerCAFile), CertFile: c.keys.Path(pki.PeerCertFile),
			KeyFile: c.keys.Path(pki.PeerKeyFile),
		}
		c.dirs[name] = c.t.TempDir()
	}
	p.Join = append(p.Join, join...)
	c.peers[name] = p
	return p
}

func (c *cluster) open(name string, p *Peers) {
	c.t.Helper()
	s, err := Open(c.t.Context(), Config{Dir: c.dirs[name], Peers: p, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		c.t.Fatalf("open %s: %v", name, err)
	}
	c.stores[name] = s
}

func (c *cluster) stop(name string) {
	if s := c.stores[name]; s != nil {
		_ = s.Close()
	}
	delete(c.stores, name)
}

// join adds a member as a learner and waits until it votes.
func (c *cluster) join(name string, by *Store) {
	c.t.Helper()
	p := c.at(name, by.etcd.peers().URL)
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	if err := by.AddLearner(ctx, p.URL); err != nil {
		c.t.Fatal(err)
	}
	c.open(name, &p)
	if err := c.stores[name].Vote(ctx, func() {}); err != nil {
		c.t.Fatal(err)
	}
}

// grow makes a store "one" that gets other members.
func (c *cluster) grow(others ...string) {
	c.t.Helper()
	p := c.at("one")
	c.open("one", nil)
	if err := c.stores["one"].Grow(c.t.Context(), p); err != nil {
		c.t.Fatal(err)
	}
	for _, name := range others {
		c.join(name, c.stores["one"])
	}
}

func (c *cluster) put(s *Store, key, value string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := s.client.Put(ctx, key, value)
	return err
}

func (c *cluster) mustPut(s *Store, key, value string) {
	c.t.Helper()
	if err := c.put(s, key, value); err != nil {
		c.t.Fatal(err)
	}
}

// get is what a key has by then; what is asked of a leader that goes has no answer.
func (c *cluster) get(s *Store, key string) string {
	c.t.Helper()
	value := ""
	soon(c.t, "it answers", func() (ok bool) {
		value, ok = tryGet(s, key)
		return ok
	})
	return value
}

func tryGet(s *Store, key string) (string, bool) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := s.client.Client.Get(ctx, key)
	if err != nil {
		return "", false
	}
	if len(r.Kvs) == 0 {
		return "", true
	}
	return string(r.Kvs[0].Value), true
}

func names(s *Store) (out string) {
	for _, m := range s.Members() {
		out += fmt.Sprintf("%s:%t ", m.Name, m.Learner)
	}
	return out
}

// A store of one grows to three while it is written to, and a watch that began
// before goes on; it survives one member's end, and shrinks to one again.
func TestGrowAndShrink(t *testing.T) {
	c := newCluster(t)
	p := c.at("one")
	c.open("one", nil)
	one := c.stores["one"]
	if one.Several() || !one.Alone() {
		t.Error("a new store is not alone")
	}
	writing, stop := context.WithCancel(t.Context())
	written := make(chan int, 1)
	go func() {
		n := 0
		for writing.Err() == nil {
			c.mustPut(one, fmt.Sprintf("/n/%d", n), "v")
			n++
		}
		written <- n
	}()
	if err := one.Grow(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	c.join("two", one)
	c.join("three", c.stores["two"]) // any member adds others
	stop()
	n := <-written
	for _, i := range []int{0, n / 2, n - 1} {
		if got := c.get(c.stores["three"], fmt.Sprintf("/n/%d", i)); got != "v" {
			t.Errorf("write %d of %d is not there: %q", i, n, got)
		}
	}
	soon(t, "all have names and votes", func() bool { return names(c.stores["two"]) == "one:false three:false two:false " })
	if one.Alone() || !one.Several() {
		t.Error("one of three is alone")
	}

	for _, m := range one.Members() {
		if m.Leads { // the one that hurts most
			c.stop(m.Name)
		}
	}
	left := c.any()
	// What is on its way to a leader that goes is lost, and its sender told so.
	soon(t, "others lead", func() bool { return c.put(left, "/after", "v") == nil })
	for name := range c.peers {
		if c.stores[name] == nil {
			p := c.peers[name]
			c.open(name, &p)
		}
	}
	soon(t, "it has what was written without it", func() bool { return c.get(c.stores["one"], "/after") == "v" })

	for _, name := range []string{"three", "two"} {
		c.remove(name)
	}
	soon(t, "one is alone again", c.stores["one"].Alone)
	soon(t, "it leads itself", func() bool { return c.put(c.stores["one"], "/alone", "v") == nil })
	c.stop("one")
	p = c.peers["one"]
	c.open("one", &p)
	if got := c.get(c.stores["one"], "/alone"); got != "v" {
		t.Errorf("after a restart: %q", got)
	}
}

func (c *cluster) any() *Store {
	for _, s := range c.stores {
		return s
	}
	return nil
}

// remove takes a member out by way of another; it learns that it is out.
func (c *cluster) remove(name string) {
	c.t.Helper()
	for _, m := range c.stores["one"].Members() {
		if m.Name != name {
			continue
		}
		soon(c.t, "it is removed", func() bool { return c.stores["one"].Remove(c.t.Context(), m.ID) == nil })
	}
	select {
	case <-c.stores[name].Lost():
		if err := c.stores[name].Err(); !errors.Is(err, ErrRemoved) {
			c.t.Errorf("%s ended with %v", name, err)
		}
	case <-time.After(time.Minute):
		c.t.Errorf("%s does not know that it was removed", name)
	}
	c.stop(name)
}

// The minority refuses, and says why; nothing that was acknowledged is lost.
func TestMinority(t *testing.T) {
	c := newCluster(t)
	c.grow("two")
	c.mustPut(c.stores["two"], "/k", "v")
	c.stop("one")
	two := c.stores["two"]
	soon(t, "it notices", func() bool { return two.etcd.current().etcd.Server.Lead() == 0 })
	err := func() error {
		_, err := two.client.Client.Txn(t.Context()).Commit()
		return err
	}()
	if !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), "no majority (the other members: one https://127.0.0.1:") {
		t.Errorf("a write says: %v", err)
	}
	if err := two.Ready(t.Context()); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("a read says: %v", err)
	}
	p := c.peers["one"]
	c.open("one", &p)
	if got := c.get(two, "/k"); got != "v" {
		t.Errorf("after the other is back: %q", got)
	}
}

// Who has no certificate of the members' CA gets nowhere; a member that nobody added
// says so.
func TestStrangers(t *testing.T) {
	c := newCluster(t)
	p := c.at("one")
	c.open("one", nil)
	if err := c.stores["one"].Grow(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := c.stores["one"].AddLearner(t.Context(), c.at("two").URL); err != nil {
		t.Fatal(err)
	}
	other := pki.Dir(t.TempDir())
	if err := other.EnsurePeer([]net.IP{net.IPv4(127, 0, 0, 1)}, 0, time.Now()); err != nil {
		t.Fatal(err)
	}
	strange := c.at("two", p.URL)
	strange.CertFile, strange.KeyFile = other.Path(pki.PeerCertFile), other.Path(pki.PeerKeyFile)
	_, err := Open(t.Context(), Config{Dir: t.TempDir(), Peers: &strange, Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "ask the other coordinators who belongs to the cluster") {
		t.Errorf("with a certificate of another CA: %v", err)
	}
	nobody := c.at("three", p.URL)
	_, err = Open(t.Context(), Config{Dir: t.TempDir(), Peers: &nobody, Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "does not know a coordinator at "+nobody.URL) {
		t.Errorf("a member that nobody added: %v", err)
	}
	err = c.stores["one"].AddLearner(t.Context(), nobody.URL)
	if err == nil || !strings.Contains(err.Error(), "another one is joining") {
		t.Errorf("two at once: %v", err)
	}
}

// A member whose store is lost has forgotten what it acknowledged: it votes no more until it
// has joined again, whether it would know whom to ask or not.
func TestLostStore(t *testing.T) {
	c := newCluster(t)
	c.grow("two", "three")
	c.stop("three")
	c.mustPut(c.stores["one"], "/k", "v") // on the disks of one and two
	for _, name := range []string{"two", "one"} {
		c.stop(name)
		if err := os.RemoveAll(c.dirs[name]); err != nil {
			t.Fatal(err)
		}
		p := c.peers[name]
		s, err := Open(t.Context(), Config{Dir: c.dirs[name], Peers: &p, Log: slog.New(slog.DiscardHandler)})
		if err == nil {
			_ = s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "shoal join --coordinator --replace") {
			t.Errorf("%s begins without what it had: %v", name, err)
		}
	}
}

// A change of the members that raft drops without a word is proposed again.
func TestChangeAgain(t *testing.T) {
	var seen []bool
	err := change(t.Context(), func(ctx context.Context, again bool) error {
		seen = append(seen, again)
		if !again {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	if diff := cmp.Diff([]bool{false, true}, seen); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := change(ctx, func(ctx context.Context, _ bool) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	}); !errors.Is(err, context.Canceled) {
		t.Errorf("for one who waits no longer: %v", err)
	}
}

// A member whose address has changed tells the others.
func TestMovedAddress(t *testing.T) {
	c := newCluster(t)
	c.grow("two", "three")
	c.stop("three")
	dir := c.dirs["three"]
	delete(c.peers, "three")
	moved := c.at("three")
	c.dirs["three"] = dir
	c.open("three", &moved)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	soon(t, "the others know", func() bool {
		_ = c.stores["three"].ShowAddress(ctx)
		for _, m := range c.stores["one"].Members() {
			if m.URL == moved.URL {
				return true
			}
		}
		return false
	})
	c.stop("two")
	soon(t, "it is part of the majority", func() bool { return c.put(c.stores["three"], "/k", "v") == nil })
}

// A store that cannot have others, as its port is taken, goes on alone.
func TestGrowFails(t *testing.T) {
	c := newCluster(t)
	p := c.at("one")
	c.open("one", nil)
	one := c.stores["one"]
	c.mustPut(one, "/before", "v")
	taken, err := net.Listen("tcp", p.Listen)
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if err := one.Grow(t.Context(), p); err == nil || !strings.Contains(err.Error(), "--peer-port") {
		t.Errorf("on a port that is taken: %v", err)
	}
	if one.Several() || !one.Alone() || c.get(one, "/before") != "v" {
		t.Error("it is not what it was")
	}
	c.mustPut(one, "/after", "v")
	c.stop("one")
	c.open("one", nil)
	if c.get(c.stores["one"], "/after") != "v" {
		t.Error("what was written afterwards is lost")
	}
}

// A member that was away while the others removed it has not heard of that from them:
// they refuse it when it is back, and it finds out why.
func TestRemovedWhileAway(t *testing.T) {
	c := newCluster(t)
	c.grow("two", "three")
	var id uint64
	soon(t, "all have names", func() bool { return names(c.stores["one"]) == "one:false three:false two:false " })
	for _, m := range c.stores["one"].Members() {
		if m.Name == "three" {
			id = m.ID
		}
	}
	c.stop("three")
	soon(t, "it is removed", func() bool { return c.stores["one"].Remove(t.Context(), id) == nil })
	p := c.peers["three"]
	c.open("three", &p)
	select {
	case <-c.stores["three"].Lost():
		if err := c.stores["three"].Err(); !errors.Is(err, ErrRemoved) {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("it goes on")
	}
}
