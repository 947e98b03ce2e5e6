package store

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
)

// A snapshot is what was there when it was taken, etcd's own tool reads it, and what is
// made of it goes on at later revisions; the store of before is kept.
func TestRestore(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cfg := Config{Dir: filepath.Join(t.TempDir(), "etcd"), Log: slog.New(slog.DiscardHandler)}
	s, err := Open(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if _, err := s.client.Put(ctx, fmt.Sprintf("/k%d", i), "before"); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "s.db")
	take(t, s, path)
	last, err := s.client.Put(ctx, "/k1", "after")
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	status, err := snapshot.NewV3(zap.NewNop()).Status(path)
	if err != nil || status.TotalKey < 20 {
		t.Errorf("etcd reads %+v, %v", status, err)
	}

	kept, err := Restore(path, cfg.Dir, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(kept, "member")); err != nil {
		t.Errorf("the store of before: %v", err)
	}
	if s, err = Open(ctx, cfg); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got, err := s.client.Client.Get(ctx, "/k1")
	if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "before" {
		t.Errorf("restored: %v, %v", got, err)
	}
	if got.Header.Revision <= last.Header.Revision {
		t.Errorf("revision %d comes again after %d", got.Header.Revision, last.Header.Revision)
	}
}

// A snapshot that is restored again goes on behind what clients have seen since it was
// restored first, on this machine or on another one.
func TestRestoreAgain(t *testing.T) {
	cfg := Config{Dir: filepath.Join(t.TempDir(), "etcd"), Log: slog.New(slog.DiscardHandler)}
	put := func() int64 {
		t.Helper()
		s, err := Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		r, err := s.client.Put(t.Context(), "/k", "v")
		if err != nil {
			t.Fatal(err)
		}
		if cfg.Dir += "-other"; r.Header.Revision < 100 {
			take(t, s, cfg.Dir+".db")
		}
		return r.Header.Revision
	}
	put()
	path, now := cfg.Dir+".db", time.Now()
	last := int64(0)
	for i := range 2 {
		if _, err := Restore(path, cfg.Dir, now.Add(time.Duration(i)*time.Minute)); err != nil {
			t.Fatal(err)
		}
		revision := put()
		if seen := last + 60*1000; revision <= seen {
			t.Errorf("revision %d, and clients may have seen %d", revision, seen)
		}
		last = revision
	}
}

func take(t *testing.T, s *Store, path string) {
	t.Helper()
	var b bytes.Buffer
	if err := s.Snapshot(&b); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := VerifySnapshot(path); err != nil {
		t.Fatal(err)
	}
}

// What is damaged or cut short is refused before anything is touched.
func TestDamagedSnapshot(t *testing.T) {
	s, err := Open(t.Context(), Config{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.client.Put(t.Context(), "/k", "v"); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "s.db")
	take(t, s, path)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(whole)
	flipped[len(flipped)/2] ^= 1
	dir := t.TempDir()
	for want, data := range map[string][]byte{
		"does not have its hash": flipped, "or not all of it": whole[:len(whole)-100], "is no snapshot": nil,
	} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Restore(path, dir, time.Now()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
	if left, err := filepath.Glob(dir + "*"); err != nil || len(left) != 1 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// Who the members of a store were is in its files, and in its snapshots; a store that was
// always alone had none.
func TestSavedMembers(t *testing.T) {
	c := newCluster(t)
	p := c.at("one")
	c.open("one", nil)
	one := c.stores["one"]
	path := filepath.Join(t.TempDir(), "s.db")
	take(t, one, path)
	if got, err := SavedMembers(t.TempDir(), path); err != nil || len(got) > 0 {
		t.Errorf("of one that was always alone: %v, %v", got, err)
	}
	if err := one.Grow(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	c.join("two", one)
	soon(t, "all have names", func() bool { return names(one) == "one:false two:false " })
	take(t, one, path)
	before := one.Cluster()
	c.stop("two")
	c.stop("one")
	for _, dir := range []string{c.dirs["one"], t.TempDir()} {
		got, err := SavedMembers(dir, path)
		if err != nil || len(got) != 2 || got[0].Name != "one" || got[0].URL != p.URL ||
			got[1].URL != c.peers["two"].URL {
			t.Errorf("%v, %v", got, err)
		}
	}
	db := filepath.Join(c.dirs["one"], "member", "snap", "db")
	if err := os.WriteFile(db, bytes.Repeat([]byte("x"), 1<<16), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := SavedMembers(c.dirs["one"], path); err != nil || len(got) != 2 {
		t.Errorf("beside a damaged store: %v, %v", got, err)
	}
	if _, err := Restore(path, c.dirs["one"], time.Now()); err != nil {
		t.Fatal(err)
	}
	c.open("one", &p)
	soon(t, "it is another cluster", func() bool {
		id := c.stores["one"].Cluster()
		return id != "" && id != before && len(c.stores["one"].Members()) == 1
	})
}
