package rotation

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-project/shoal/coordinator/pki"
	"github.com/shoal-project/shoal/coordinator/store"
)

// memory are notes that all members of a test have.
type memory struct {
	mu       sync.Mutex
	revision int64
	notes    map[string]store.Note
}

func (n *memory) All(context.Context) (map[string]store.Note, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := map[string]store.Note{}
	for name, note := range n.notes {
		out[name] = note
	}
	return out, nil
}

func (n *memory) Put(_ context.Context, name string, data []byte, revision int64) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.notes[name].Revision != revision {
		return store.ErrChanged
	}
	n.revision++
	n.notes[name] = store.Note{Data: data, Revision: n.revision}
	return nil
}

func (n *memory) Delete(_ context.Context, name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.notes, name)
	return nil
}

func (n *memory) Follow(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return nil
}

// cluster are coordinators that look at the notes when a test says so.
type cluster struct {
	t     *testing.T
	notes *memory
	names []string
	all   map[string]*Member
}

func newCluster(t *testing.T, names ...string) *cluster {
	c := &cluster{t: t, notes: &memory{notes: map[string]store.Note{}}, names: names, all: map[string]*Member{}}
	first := pki.Dir(t.TempDir())
	if err := first.Ensure(pki.Cluster{}, time.Now()); err != nil {
		t.Fatal(err)
	}
	shared, err := first.Shared()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		dir := pki.Dir(t.TempDir())
		if err := dir.Install(shared); err != nil {
			t.Fatal(err)
		}
		c.all[name] = c.member(name, dir)
	}
	c.look(names...)
	c.look(names...)
	return c
}

func (c *cluster) member(name string, dir pki.Dir) *Member {
	m := &Member{Name: name, Notes: c.notes, Dir: dir, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Must: func() []string { return c.names }}
	for _, of := range []pki.Rotating{pki.CAs, pki.ServiceAccounts} {
		m.Sets = append(m.Sets, Set{Name: of.Name,
			Read: func() (pki.Files, error) { return dir.ReadFiles(of.Files...) },
			Use:  func(f pki.Files) error { return dir.Replace(f, of.Files...) }})
	}
	return m
}

func (c *cluster) look(names ...string) {
	c.t.Helper()
	for _, name := range names {
		if err := c.all[name].look(c.t.Context()); err != nil {
			c.t.Fatalf("%s: %v", name, err)
		}
	}
}

// step takes the next step of a set at a member, which nobody has followed then.
func (c *cluster) step(by string, of pki.Rotating, force bool) error {
	c.t.Helper()
	m := c.all[by]
	old, err := m.Dir.ReadFiles(of.Files...)
	if err != nil {
		c.t.Fatal(err)
	}
	step, files, err := of.Next(old, time.Now())
	if err != nil {
		c.t.Fatal(err)
	}
	return m.Change(c.t.Context(),
		Change{Set: of.Name, Step: string(step), Base: digest(old), Files: files, Force: force})
}

func (c *cluster) must(by string, of pki.Rotating, force bool) {
	c.t.Helper()
	if err := c.step(by, of, force); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) alike(names ...string) {
	c.t.Helper()
	for _, of := range []pki.Rotating{pki.CAs, pki.ServiceAccounts} {
		want := ""
		for _, name := range names {
			files, err := c.all[name].Dir.ReadFiles(of.Files...)
			if err != nil {
				c.t.Fatal(err)
			}
			if want == "" {
				want = digest(files)
			}
			if digest(files) != want {
				c.t.Errorf("%s has another %s", name, of.Name)
			}
		}
	}
}

// A whole rotation of the CA goes on, by force, without one that is away; it follows all
// at once when it is back, and what was rotated after it too.
func TestAwayForAll(t *testing.T) {
	c := newCluster(t, "a", "b", "c")
	for i, by := range []string{"a", "b", "a"} {
		err := c.step(by, pki.CAs, false)
		if behind := i > 0; behind != (err != nil && strings.Contains(err.Error(), "c: it has others")) {
			t.Fatalf("step %d: %v", i, err)
		}
		if err != nil {
			c.must(by, pki.CAs, true)
		}
		c.look("a", "b")
	}
	c.alike("a", "b")
	c.must("b", pki.ServiceAccounts, true) // nothing of c's vouches for it yet
	c.look("a", "b")
	if err := c.all["c"].look(t.Context()); err == nil || !strings.Contains(err.Error(), "not sealed") {
		t.Errorf("c opened what was not sealed to it: %v", err)
	}
	c.look("a") // sees c's note, which the new CA has signed
	c.look("c")
	c.alike("a", "b", "c")
}

// What no CA has signed, what is older, and what was changed is not taken.
func TestForged(t *testing.T) {
	c := newCluster(t, "a", "b")
	c.must("a", pki.ServiceAccounts, false)
	first := c.notes.notes["set/serviceaccount"]
	c.look("a", "b")
	c.must("a", pki.ServiceAccounts, false)
	c.look("a", "b")
	before, err := c.all["b"].Dir.ReadFiles(pki.ServiceAccounts.Files...)
	if err != nil {
		t.Fatal(err)
	}
	now := c.notes.notes["set/serviceaccount"]
	other := newCluster(t, "a", "b") // another cluster's CA
	other.must("a", pki.ServiceAccounts, false)
	forge := func(change func(*record)) store.Note {
		var r record
		if err := json.Unmarshal(now.Data, &r); err != nil {
			t.Fatal(err)
		}
		change(&r)
		data, _ := json.Marshal(r)
		return store.Note{Data: data, Revision: now.Revision}
	}
	var strange record
	if err := json.Unmarshal(other.notes.notes["set/serviceaccount"].Data, &strange); err != nil {
		t.Fatal(err)
	}
	for name, n := range map[string]store.Note{
		"older":        {Data: first.Data, Revision: now.Revision},
		"a_generation": forge(func(r *record) { r.Generation = 9 }),
		"of_another_cluster": forge(func(r *record) {
			strange.Generation = 9
			*r = strange
		}),
		"sealed_by_anybody": forge(func(r *record) {
			r.Generation, r.Digest = 9, digest(pki.Files{"sa.key": []byte("x")})
			r.Sealed = nil
			var b note
			if err := json.Unmarshal(c.notes.notes["member/b"].Data, &b); err != nil {
				t.Fatal(err)
			}
			if err := r.seal(pki.Files{"sa.key": []byte("x")}, b); err != nil {
				t.Fatal(err)
			}
		}),
		"no_record": {Data: []byte("{"), Revision: now.Revision},
	} {
		t.Run(name, func(t *testing.T) {
			c.notes.notes["set/serviceaccount"] = n
			_ = c.all["b"].look(t.Context())
			after, err := c.all["b"].Dir.ReadFiles(pki.ServiceAccounts.Files...)
			if err != nil || digest(after) != digest(before) {
				t.Errorf("it was taken: %v", err)
			}
		})
	}
}

// Files that were changed by hand, at all alike, are what the next step changes; at one
// alone they hold it. After a restore of an older store the files count.
func TestByHand(t *testing.T) {
	c := newCluster(t, "a", "b")
	c.must("a", pki.ServiceAccounts, false)
	c.look("a", "b")
	byHand := func(names ...string) {
		t.Helper()
		files, err := c.all[names[0]].Dir.ReadFiles(pki.ServiceAccounts.Files...)
		if err != nil {
			t.Fatal(err)
		}
		if _, files, err = pki.ServiceAccounts.Next(files, time.Now()); err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if err := c.all[name].Dir.Replace(files, pki.ServiceAccounts.Files...); err != nil {
				t.Fatal(err)
			}
		}
		c.look("a", "b")
	}
	byHand("a")
	if err := c.step("a", pki.ServiceAccounts, false); err == nil {
		t.Error("a step of files that the other has not")
	}
	if err := c.step("b", pki.ServiceAccounts, false); err == nil || !strings.Contains(err.Error(), "a: it has others") {
		t.Errorf("a step that one does not follow: %v", err)
	}
	byHand("a", "b")
	c.must("b", pki.ServiceAccounts, false)
	old := c.notes.notes["set/serviceaccount"]
	c.look("a", "b")
	c.alike("a", "b")
	c.must("a", pki.ServiceAccounts, false)
	c.look("a", "b")
	c.notes.notes = map[string]store.Note{"set/serviceaccount": old} // of a snapshot
	c.look("a", "b")
	c.must("a", pki.ServiceAccounts, false)
	c.look("a", "b")
	c.alike("a", "b")
}

// Nobody but the members can open what is in the store, and a member that was removed
// gets nothing more.
func TestSealed(t *testing.T) {
	c := newCluster(t, "a", "b", "gone")
	c.names = []string{"a", "b"}
	c.must("a", pki.CAs, false)
	var r record
	if err := json.Unmarshal(c.notes.notes["set/ca"].Data, &r); err != nil {
		t.Fatal(err)
	}
	if r.Sealed["gone"] != nil || len(r.Sealed) != 2 {
		t.Errorf("sealed to %d, to the one that was removed: %v", len(r.Sealed), r.Sealed["gone"] != nil)
	}
	c.look("a", "b")
	files, err := c.all["b"].Dir.ReadFiles(pki.CAs.Files...)
	if err != nil {
		t.Fatal(err)
	}
	for name, n := range c.notes.notes {
		for _, key := range []string{"ca.key", "ca-next.key"} {
			if bytes.Contains(n.Data, bytes.TrimSpace(files[key])) {
				t.Errorf("%s is in %s in the clear", key, name)
			}
		}
	}
	key, err := ownKey(c.all["gone"].Dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open(key, r.text(), r.Sealed["b"]); err == nil {
		t.Error("another's key opens it")
	}
}

// A crash between any two steps leaves what the next look completes.
func TestCrashed(t *testing.T) {
	c := newCluster(t, "a", "b")
	c.must("a", pki.CAs, false)
	b := c.all["b"]
	use := b.Sets[0].Use
	b.Sets[0].Use = func(f pki.Files) error { // the files are written, and nothing more
		if err := use(f); err != nil {
			t.Fatal(err)
		}
		return context.Canceled
	}
	if err := b.look(t.Context()); err == nil {
		t.Fatal("it did not fail")
	}
	if err := c.step("a", pki.CAs, false); err == nil {
		t.Error("a step was taken while b is behind")
	}
	c.all["b"] = c.member("b", b.Dir) // started anew
	c.look("a", "b")
	c.must("a", pki.CAs, false)
	c.look("a", "b")
	c.alike("a", "b")
}

func TestRefused(t *testing.T) {
	c := newCluster(t, "a", "b")
	a := c.all["a"]
	if err := a.Change(t.Context(), Change{Set: "ca", Base: "another"}); err == nil || !strings.Contains(err.Error(), "are not those of the step before") {
		t.Errorf("of other files: %v", err)
	}
	if err := a.Change(t.Context(), Change{Set: "x"}); err == nil || !strings.Contains(err.Error(), "there are no keys") {
		t.Errorf("of unknown keys: %v", err)
	}
	status, err := a.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	set, err := status.Of("ca")
	if err != nil || len(set.Behind) > 0 || len(set.Followed) != 2 || set.Generation != 0 {
		t.Errorf("before any: %+v, %v", set, err)
	}
	c.names = append(c.names, "silent")
	c.must("a", pki.CAs, true)
	if status, err = a.Status(t.Context()); err != nil {
		t.Fatal(err)
	}
	if set, _ = status.Of("ca"); len(set.Behind) != 3 || set.Step != "added" {
		t.Errorf("when nobody has followed: %+v", set)
	}
}

// FuzzNotes: whoever writes into the store cannot have a coordinator fail.
func FuzzNotes(f *testing.F) {
	f.Add("set/ca", []byte(`{"set":"ca","generation":1,"sealed":{"a":"AAAA"},"signatures":["AAAA"]}`))
	f.Add("member/b", []byte(`{"name":"b","key":"AAAA","uses":{"ca":"x"}}`))
	f.Add("x", []byte("{"))
	dir := pki.Dir(f.TempDir())
	if err := dir.Ensure(pki.Cluster{}, time.Now()); err != nil {
		f.Fatal(err)
	}
	m := &Member{Name: "a", Dir: dir}
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		s := state{sets: map[string]record{}, members: map[string]note{}}
		s.add(name, store.Note{Data: data})
		for _, r := range s.sets {
			if _, err := m.open(r); err == nil {
				t.Error("what nobody signed was opened")
			}
		}
	})
}
