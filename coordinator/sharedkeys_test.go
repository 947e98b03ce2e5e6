package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoal-project/shoal/coordinator/encryption"
	"github.com/shoal-project/shoal/coordinator/pki"
)

// A configuration that the store does not take is not what the next start finds.
func TestUseEncryption(t *testing.T) {
	dir := t.TempDir()
	made := func(name string) (encryption.File, []byte) {
		f := encryption.File(filepath.Join(dir, name))
		if err := f.Make(time.Now()); err != nil {
			t.Fatal(err)
		}
		return f, []byte(readFile(t, string(f)))
	}
	f, before := made("encryption.yaml")
	_, next := made("next.yaml")
	var used []string
	refuse := func(context.Context) error {
		now, err := os.ReadFile(string(f))
		if used = append(used, string(now)); string(now) == string(next) {
			err = errors.New("a stored value is under another key")
		}
		return err
	}
	if err := useEncryption(f, next, refuse); err == nil {
		t.Error("it is said to be used")
	}
	if now := readFile(t, string(f)); now != string(before) {
		t.Errorf("the file has %s", now)
	}
	if len(used) != 2 || used[1] != string(before) {
		t.Errorf("the one before is not used again: %q", used)
	}
	if err := useEncryption(f, next, func(context.Context) error { return nil }); err != nil {
		t.Error(err)
	}
	if now := readFile(t, string(f)); now != string(next) {
		t.Errorf("the file has %s", now)
	}
}

// A set of one file is that file.
func TestOnly(t *testing.T) {
	check := only("gossip.key", func(data []byte) error {
		if string(data) != "good" {
			return errors.New("bad")
		}
		return nil
	})
	if err := check(pki.Files{"gossip.key": []byte("good")}); err != nil {
		t.Error(err)
	}
	for _, f := range []pki.Files{nil, {}, {"gossip.key": nil}, {"gossip.key": []byte("x")}, {"x": []byte("good")},
		{"gossip.key": []byte("good"), "x": []byte("good")}} {
		if check(f) == nil {
			t.Errorf("%v is taken", f)
		}
	}
}
