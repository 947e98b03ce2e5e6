package store

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	etcdkube "go.etcd.io/etcd/client/v3/kubernetes"
)

// TestDamagedFiles: a store whose files are damaged is opened with all that was in it, or
// refused by one error that names the file and says what to do. etcd would end the process
// with a stack, or never be ready.
func TestDamagedFiles(t *testing.T) {
	directory := func(p string) error { return errors.Join(os.Remove(p), os.MkdirAll(filepath.Join(p, "in"), 0o700)) }
	noise := func(p string) error {
		data, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		copy(data, bytes.Repeat([]byte("noise"), 4000)) // the pages that tell of the others
		return os.WriteFile(p, data, 0o600)
	}
	const db, wal = "member/snap/db", "member/wal/0000000000000000-0000000000000000.wal"
	for name, c := range map[string]struct {
		file   string
		damage func(string) error
		says   string // "": it is opened
	}{
		"db-deleted":    {db, os.Remove, ""},
		"db-empty":      {db, func(p string) error { return os.Truncate(p, 0) }, ""},
		"db-directory":  {db, directory, "snap/db"},
		"db-noise":      {db, noise, "snap/db is damaged"},
		"wal-deleted":   {wal, os.Remove, "member/wal has no file"},
		"wal-empty":     {wal, func(p string) error { return os.Truncate(p, 0) }, "an empty one"},
		"wal-directory": {wal, directory, wal},
		"all-deleted":   {"member", os.RemoveAll, "member/wal is gone"},
		"wal-noise":     {wal, noise, "none as id"},
	} {
		t.Run(name, func(t *testing.T) {
			// Not t.TempDir: what a start that failed has begun may still write a file.
			dir, err := os.MkdirTemp("", "damaged-")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			cfg := Config{Dir: dir, Log: slog.New(slog.DiscardHandler)}
			s, err := Open(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			const key = "/registry/configmaps/a/a"
			if _, err := s.client.OptimisticPut(t.Context(), key, []byte("kept"), 0, etcdkube.PutOptions{}); err != nil {
				t.Fatal(err)
			}
			s.Close()
			if err := c.damage(filepath.Join(cfg.Dir, c.file)); err != nil {
				t.Fatal(err)
			}
			s, err = Open(t.Context(), cfg)
			if c.says != "" {
				if err == nil {
					s.Close()
					t.Fatal("it is opened")
				}
				for _, part := range []string{cfg.Dir, c.says, "`shoal snapshot restore`"} {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("%q is not in: %v", part, err)
					}
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			got, err := s.client.Get(t.Context(), key, etcdkube.GetOptions{})
			if err != nil || got.KV == nil || string(got.KV.Value) != "kept" {
				t.Errorf("read %v, %v", got.KV, err)
			}
		})
	}
}
