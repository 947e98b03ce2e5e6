package upgrade

import (
	"bytes"
	"crypto/sha256"
	"os"
	"path/filepath"
	"testing"
)

// TestKeepStore: the copy is a snapshot's file, its hash behind it; a link of the
// coordinator's to what is not its own is not followed.
func TestKeepStore(t *testing.T) {
	state, dir := t.TempDir(), t.TempDir()
	secret := filepath.Join(t.TempDir(), "secret")
	h := &Host{Dir: Dir(dir), StateDir: state}
	if err := h.KeepStore(t.Context()); err == nil {
		t.Error("of no store")
	}
	db := filepath.Join(state, database)
	content := bytes.Repeat([]byte("page"), 1024)
	for path, data := range map[string][]byte{db: content, secret: []byte("root's")} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.KeepStore(t.Context()); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(content)
	got, err := os.ReadFile(h.copied())
	if err != nil || !bytes.Equal(got, append(bytes.Clone(content), sum[:]...)) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if info, err := os.Stat(h.copied()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if err := os.Remove(db); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, db); err != nil {
		t.Fatal(err)
	}
	if err := h.KeepStore(t.Context()); err == nil {
		t.Error("a link out of the directory is followed")
	}
}
