package volume

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// file is one file of a projection.
type file struct {
	data []byte
	mode fs.FileMode
}

// owner is who projected files belong to; -1 leaves it.
type owner struct{ uid, gid int }

const (
	dataLink = "..data"
	dataNew  = "..data_tmp"
)

// writeAtomic makes dir show exactly files, all changed in one moment: they
// live in a directory of their own that the link ..data points to, and names
// in dir are links through it. Nothing is written when nothing changed.
func writeAtomic(dir string, files map[string]file, own owner) error {
	for name := range files {
		if err := checkName(name); err != nil {
			return err
		}
	}
	old, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if old != "" && sameFiles(filepath.Join(dir, old), files) {
		return linkNames(dir, files)
	}
	fresh, err := os.MkdirTemp(dir, time.Now().UTC().Format("..2006_01_02_15_04_05."))
	if err != nil {
		return err
	}
	if err := fill(fresh, files, own); err != nil {
		return errors.Join(err, os.RemoveAll(fresh))
	}
	tmp := filepath.Join(dir, dataNew)
	os.Remove(tmp)
	if err := os.Symlink(filepath.Base(fresh), tmp); err != nil {
		return errors.Join(err, os.RemoveAll(fresh))
	}
	if err := os.Rename(tmp, filepath.Join(dir, dataLink)); err != nil {
		return errors.Join(err, os.Remove(tmp), os.RemoveAll(fresh))
	}
	if err := linkNames(dir, files); err != nil {
		return err
	}
	if old != "" {
		return os.RemoveAll(filepath.Join(dir, old))
	}
	return nil
}

func checkName(name string) error {
	if name == "" || filepath.IsAbs(name) || strings.HasPrefix(name, "..") || !filepath.IsLocal(name) {
		return fmt.Errorf("invalid path %q: must be relative and must not begin with or contain '..'", name)
	}
	return nil
}

func fill(dir string, files map[string]file, own owner) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	for name, f := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, f.data, f.mode); err != nil {
			return err
		}
		// The umask took bits that the pod's author asked for.
		if err := os.Chmod(path, f.mode); err != nil {
			return err
		}
		if own.uid >= 0 || own.gid >= 0 {
			if err := os.Chown(path, own.uid, own.gid); err != nil {
				return err
			}
		}
	}
	return nil
}

// sameFiles tells whether dir holds exactly files.
func sameFiles(dir string, files map[string]file) bool {
	n := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		want, ok := files[rel]
		if !ok {
			return fs.ErrExist
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		if st.Mode().Perm() != want.mode.Perm() {
			return fs.ErrExist
		}
		have, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !bytes.Equal(have, want.data) {
			return fs.ErrExist
		}
		n++
		return nil
	})
	return err == nil && n == len(files)
}

// linkNames makes the names that users see, and removes those that are gone.
func linkNames(dir string, files map[string]file) error {
	want := map[string]bool{}
	for name := range files {
		top, _, _ := strings.Cut(name, "/")
		want[top] = true
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	have := map[string]bool{}
	for _, e := range entries {
		name := e.Name()
		switch {
		case strings.HasPrefix(name, ".."):
		case !want[name]:
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				return err
			}
		default:
			have[name] = true
		}
	}
	for name := range want {
		if !have[name] {
			if err := os.Symlink(filepath.Join(dataLink, name), filepath.Join(dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}
