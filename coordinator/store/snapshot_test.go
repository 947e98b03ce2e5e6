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
