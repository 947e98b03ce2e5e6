package rotation

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
	t     testing.TB
	notes *memory
	names []string
	all   map[string]*Member
}

func newCluster(t testing.TB, names ...string) *cluster {
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
		m.Sets = append(m.Sets, Set{Name: of.Name, Check: of.Check,
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

// What no CA has signed, what is older, and what was changed is not taken, and nothing of
// it counts: the next step is of the number after the one before.
func TestForged(t *testing.T) {
	other := newCluster(t, "a", "b") // another cluster's CA
	other.must("a", pki.ServiceAccounts, false)
	const name = "set/serviceaccount"
	changed := func(change func(*cluster, *record)) func(*cluster) []byte {
		return func(c *cluster) []byte {
			r := c.record(name)
			change(c, &r)
			return encoded(t, r)
		}
	}
	for title, forge := range map[string]func(*cluster) []byte{
		"a_generation":        changed(func(_ *cluster, r *record) { r.Generation = 9 }),
		"the_last_generation": changed(func(_ *cluster, r *record) { r.Generation = math.MaxInt64 }),
		"a_time":              changed(func(_ *cluster, r *record) { r.Since, r.Generation = time.Unix(9, 0), 9 }),
		"of_another_cluster": changed(func(_ *cluster, r *record) {
			*r = other.record(name)
			r.Generation = 9
		}),
		"sealed_by_anybody": changed(func(c *cluster, r *record) {
			r.Generation, r.Digest, r.Sealed = 9, digest(pki.Files{"sa.key": []byte("x")}), nil
			if err := r.seal(pki.Files{"sa.key": []byte("x")}, c.told("b")); err != nil {
				t.Fatal(err)
			}
		}),
		"too_far_ahead": changed(func(c *cluster, r *record) { // by a CA's key
			r.Generation = math.MaxInt64
			cas, err := c.all["a"].cas()
			if err == nil {
				r.Signatures, err = sign(cas, r.text())
			}
			if err != nil {
				t.Fatal(err)
			}
		}),
		"no_record": func(*cluster) []byte { return []byte("{") },
		"too_long":  func(*cluster) []byte { return bytes.Repeat([]byte(" "), maxNote+1) },
	} {
		t.Run(title, func(t *testing.T) {
			c := newCluster(t, "a", "b")
			c.must("a", pki.ServiceAccounts, false)
			older := c.notes.notes[name].Data
			c.look("a", "b")
			c.must("a", pki.ServiceAccounts, false)
			c.look("a", "b")
			before, first := c.taken("b"), forge(c)
			for _, forged := range [][]byte{older, first} {
				c.overwrite(name, forged)
				_ = c.all["b"].look(t.Context())
				if diff := cmp.Diff(before, c.taken("b")); diff != "" {
					t.Errorf("it was taken: %s", diff)
				}
			}
			c.must("a", pki.ServiceAccounts, true)
			if r := c.record(name); r.Generation != 3 {
				t.Errorf("the next step is the %d.", r.Generation)
			}
			c.look("a", "b")
			c.alike("a", "b")
		})
	}
}

// What somebody else writes in a coordinator's name counts for nothing.
func TestForgedNotes(t *testing.T) {
	for title, forge := range map[string]func(*note){
		"generations": func(n *note) { n.Generations = map[string]int64{"serviceaccount": math.MaxInt64} },
		"uses":        func(n *note) { n.Uses = map[string]string{"serviceaccount": "x"} },
		"failed":      func(n *note) { n.Failed = map[string]string{"serviceaccount": "x"} },
		"key":         func(n *note) { n.Key[0] ^= 1 },
	} {
		t.Run(title, func(t *testing.T) {
			c := newCluster(t, "a", "b")
			n := c.told("b")
			forge(&n)
			c.overwrite("member/b", encoded(t, n))
			if err := c.step("a", pki.ServiceAccounts, false); err == nil || !strings.Contains(err.Error(), "b: no CA of now has signed") {
				t.Errorf("a step by what nobody has signed: %v", err)
			}
			c.must("a", pki.ServiceAccounts, true)
			if r := c.record("set/serviceaccount"); r.Generation != 1 || r.Sealed["b"] != nil {
				t.Errorf("the step is the %d., sealed to b: %v", r.Generation, r.Sealed["b"] != nil)
			}
			_ = c.all["b"].look(t.Context())
			c.look("a", "b") // it writes its own again
			c.alike("a", "b")
		})
	}
}

// A record outlives the CA that has signed it first: who joins later believes it.
func TestSignedAnew(t *testing.T) {
	c := newCluster(t, "a", "b")
	c.must("a", pki.ServiceAccounts, false)
	c.look("a", "b")
	for _, by := range []string{"a", "b", "a"} {
		c.must(by, pki.CAs, false)
		c.look("a", "b")
		c.look("a", "b")
	}
	s, err := c.all["b"].read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range []pki.Rotating{pki.CAs, pki.ServiceAccounts} {
		if r, ok := s.believed(of.Name); !ok || r.Generation == 0 {
			t.Errorf("%s: step %d is believed: %v", of.Name, r.Generation, ok)
		}
	}
	before := c.notes.revision
	c.look("a", "b")
	if c.notes.revision != before {
		t.Error("notes are written anew although they say all")
	}
}

// A key that is not on the disk is not used: after a restart nobody could open what is
// sealed to it.
func TestKeyNotKept(t *testing.T) {
	c := newCluster(t, "a")
	m := c.member("a", c.all["a"].Dir)
	m.Dir = pki.Dir(filepath.Join(t.TempDir(), "gone"))
	for range 2 {
		if err := m.loadKey(); err == nil || m.key != nil {
			t.Errorf("%v, %v", m.key != nil, err)
		}
	}
}

// saysTheSame tells whether what is signed of two notes is alike, however it is written.
func saysTheSame(a, b []byte) bool {
	var one, other note
	if json.Unmarshal(a, &one) != nil || json.Unmarshal(b, &other) != nil {
		return false
	}
	first, err := one.text()
	second, otherErr := other.text()
	return err == nil && otherErr == nil && bytes.Equal(first, second)
}

func encoded(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func (c *cluster) record(name string) (r record) {
	c.t.Helper()
	if err := json.Unmarshal(c.notes.notes[name].Data, &r); err != nil {
		c.t.Fatal(err)
	}
	return r
}

func (c *cluster) told(name string) (n note) {
	c.t.Helper()
	if err := json.Unmarshal(c.notes.notes["member/"+name].Data, &n); err != nil {
		c.t.Fatal(err)
	}
	return n
}

// overwrite is what somebody does who writes into the store.
func (c *cluster) overwrite(name string, data []byte) {
	c.notes.mu.Lock()
	defer c.notes.mu.Unlock()
	c.notes.revision++
	c.notes.notes[name] = store.Note{Data: data, Revision: c.notes.revision}
}

// took is what a coordinator has taken over.
type took struct {
	Generations map[string]int64
	Files       pki.Files
}

func (c *cluster) taken(name string) (out took) {
	c.t.Helper()
	m := c.all[name]
	var err error
	if out.Generations, err = m.generations(); err != nil {
		c.t.Fatal(err)
	}
	all := append(slices.Clone(pki.CAs.Files), pki.ServiceAccounts.Files...)
	if out.Files, err = m.Dir.ReadFiles(all...); err != nil {
		c.t.Fatal(err)
	}
	return out
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

// What no coordinator could use, or read, is not stored.
func TestUnusable(t *testing.T) {
	c := newCluster(t, "a", "b")
	a := c.all["a"]
	before := c.notes.revision
	another := newCluster(t, "z").taken("z").Files
	for _, of := range []pki.Rotating{pki.CAs, pki.ServiceAccounts} {
		key := map[string]string{"ca": "ca.key", "serviceaccount": "sa.key"}[of.Name]
		old, err := a.Dir.ReadFiles(of.Files...)
		if err != nil {
			t.Fatal(err)
		}
		with := func(name string, data []byte) pki.Files {
			out := maps.Clone(old)
			out[name] = data
			return out
		}
		for title, files := range map[string]pki.Files{
			"nothing": {}, "no_key": with(of.Files[0], nil), "another_file": with("gossip.key", []byte("x")),
			"another_key": with(key, another[key]),
		} {
			err := a.Change(t.Context(), Change{Set: of.Name, Base: digest(old), Files: files, Force: true})
			if err == nil || !strings.Contains(err.Error(), "cannot be used") {
				t.Errorf("%s: %s: %v", of.Name, title, err)
			}
		}
	}
	old, err := a.Dir.ReadFiles(pki.ServiceAccounts.Files...)
	if err != nil {
		t.Fatal(err)
	}
	long := maps.Clone(old)
	long["sa.key"] = append(bytes.Repeat([]byte("#\n"), maxNote/2), old["sa.key"]...)
	if err := a.Change(t.Context(), Change{Set: "serviceaccount", Base: digest(old), Files: long}); err == nil ||
		!strings.Contains(err.Error(), "more than") {
		t.Errorf("too long: %v", err)
	}
	if c.notes.revision != before {
		t.Error("something was stored")
	}
}

// Files that one coordinator cannot use are taken back from all, although it is behind.
func TestRestore(t *testing.T) {
	c := newCluster(t, "a", "b")
	a, b := c.all["a"], c.all["b"]
	old, err := a.Dir.ReadFiles(pki.ServiceAccounts.Files...)
	if err != nil {
		t.Fatal(err)
	}
	_, bad, err := pki.ServiceAccounts.Next(old, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	spread, failed := context.WithCancel(t.Context())
	defer failed()
	for i := range b.Sets {
		use := b.Sets[i].Use
		b.Sets[i].Use = func(f pki.Files) error {
			if digest(f) == digest(bad) {
				failed()
				return errors.New("it cannot")
			}
			return use(f)
		}
	}
	look, stop := context.WithCancel(t.Context())
	var looking sync.WaitGroup
	for _, m := range []*Member{a, b} {
		looking.Go(func() {
			for look.Err() == nil {
				_ = m.look(look)
				time.Sleep(time.Millisecond)
			}
		})
	}
	defer looking.Wait()
	defer stop()
	// Nothing was taken yet: there is nothing to do.
	before := c.taken("a")
	if err := Restore(t.Context(), a, Change{Set: "serviceaccount", Files: old}, bad); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, c.taken("a")); diff != "" {
		t.Error(diff)
	}
	if err := Spread(spread, a, Change{Set: "serviceaccount", Files: bad}, old); err == nil {
		t.Fatal("all have followed")
	}
	err = Spread(t.Context(), a, Change{Set: "serviceaccount", Files: old}, bad)
	if err == nil || !strings.Contains(err.Error(), "coordinators are behind") {
		t.Errorf("without force: %v", err)
	}
	if err := Restore(t.Context(), a, Change{Set: "serviceaccount", Files: old}, bad); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		status, err := a.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		set, _ := status.Of("serviceaccount")
		if len(set.Behind) == 0 && set.Digest == digest(old) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", set)
		}
	}
	c.alike("a", "b")
}

// FuzzNotes: whoever writes into the store can neither have a coordinator fail nor have
// it take anything over.
func FuzzNotes(f *testing.F) {
	f.Add("set/ca", []byte(`{"set":"ca","generation":1,"sealed":{"a":"AAAA"},"signatures":["AAAA"]}`))
	f.Add("set/serviceaccount", []byte(`{"set":"serviceaccount","generation":9223372036854775807}`))
	f.Add("member/b", []byte(`{"name":"b","key":"AAAA","uses":{"ca":"x"},"generations":{"ca":9}}`))
	f.Add("member/c", []byte(`{"name":"c"}`))
	f.Add("x", []byte("{"))
	c := newCluster(f, "a", "b")
	c.must("a", pki.ServiceAccounts, false)
	c.look("a", "b")
	c.look("a", "b")
	good, _ := c.notes.All(f.Context())
	before := c.taken("a")
	for _, n := range good {
		f.Add("set/serviceaccount", n.Data)
		f.Add("member/b", n.Data)
	}
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		// A note that is one of the good ones shows nothing.
		if string(good[name].Data) == string(data) {
			return
		}
		c.t, c.notes.notes = t, maps.Clone(good)
		c.overwrite(name, data)
		m := c.member("a", c.all["a"].Dir)
		_ = m.look(t.Context()) // it may say that something is not as it should be
		if diff := cmp.Diff(before, c.taken("a")); diff != "" {
			t.Errorf("it was taken: %s", diff)
		}
		status, err := m.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range status.Sets {
			if s.Generation != before.Generations[s.Name] {
				t.Errorf("%s is said to be at %d", s.Name, s.Generation)
			}
			member, ok := strings.CutPrefix(name, memberPrefix)
			if ok && !saysTheSame(data, good[name].Data) && member != m.Name && slices.Contains(s.Followed, member) {
				t.Errorf("%s follows by what nobody has signed", name)
			}
		}
	})
}
