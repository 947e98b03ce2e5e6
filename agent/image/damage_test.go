package image

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestDamagedFiles: whatever is done to a file or a directory of the store, the next agent
// has the image again, of its archive, with all of its layers.
func TestDamagedFiles(t *testing.T) {
	type damage struct {
		name string
		do   func(path string, dir bool) error
	}
	damages := []damage{
		{"deleted", func(p string, _ bool) error { return os.RemoveAll(p) }},
		{"replaced", func(p string, dir bool) error {
			if dir {
				return errors.Join(os.RemoveAll(p), os.WriteFile(p, []byte("in the way"), 0o600))
			}
			return errors.Join(os.Remove(p), os.MkdirAll(filepath.Join(p, "in"), 0o700))
		}},
		{"empty", func(p string, dir bool) error {
			if dir {
				return nil
			}
			return os.Truncate(p, 0)
		}},
		{"half", func(p string, dir bool) error {
			info, err := os.Stat(p)
			if err != nil || dir {
				return err
			}
			return os.Truncate(p, info.Size()/2)
		}},
		{"middle", func(p string, dir bool) error {
			data, err := os.ReadFile(p)
			if err != nil {
				return nil // a directory
			}
			for i := len(data) / 4; i < len(data)*3/4; i++ {
				data[i] ^= 0xa5
			}
			return os.WriteFile(p, data, 0o600)
		}},
		{"noise", func(p string, dir bool) error {
			if dir {
				return nil
			}
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			for i := range data {
				data[i] ^= 0xa5
			}
			return os.WriteFile(p, data, 0o600)
		}},
	}
	for _, d := range damages {
		t.Run(d.name, func(t *testing.T) {
			r := newRig(t)
			r.play("> registry a has one\n> archive a.tar of a\n> import\n> use docker.io/library/a:latest\n")
			if list := r.play("> list\n"); list == "" {
				t.Fatal("no image")
			}
			var paths []string
			walk := func(p string, e os.DirEntry, err error) error {
				if err == nil && !e.IsDir() || filepath.Base(p) == "fs" || filepath.Base(p) == "sha256" {
					paths = append(paths, p)
				}
				return err
			}
			if err := filepath.WalkDir(filepath.Join(r.dir, "store"), func(p string, e os.DirEntry, err error) error {
				if filepath.Base(filepath.Dir(p)) == "fs" {
					return nil // of the layer
				}
				return walk(p, e, err)
			}); err != nil {
				t.Fatal(err)
			}
			if len(paths) < 7 {
				t.Fatalf("only %v", paths)
			}
			for _, p := range paths {
				info, err := os.Lstat(p)
				if err != nil {
					continue // the store was made anew meanwhile
				}
				if err := r.store.Close(); err != nil {
					t.Fatal(err)
				}
				if err := d.do(p, info.IsDir()); err != nil {
					t.Fatal(err)
				}
				r.open()
				if said := r.play("> import\n"); said != "> import\n" {
					t.Errorf("after %s: %s", p, said)
				}
				i, err := r.store.Find("docker.io/library/a:latest")
				if err != nil {
					t.Errorf("after %s: %v", p, err)
					continue
				}
				dirs, err := r.store.Lower(t.Context(), i.ChainID)
				if err != nil || len(dirs) != 1 {
					t.Errorf("after %s: %v %v", p, dirs, err)
					continue
				}
				if _, err := os.Stat(filepath.Join(dirs[0], "one")); err != nil {
					t.Errorf("after %s: %v", p, err)
				}
			}
		})
	}
}
