package pki

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// Files are contents of files in the directory by their names.
type Files map[string][]byte

// journal lists files that are being replaced together.
const journal = ".replacing.json"

type replacement struct {
	Files  Files    `json:"files"`
	Remove []string `json:"remove"`
}

// ReadFiles reads those of the names that are there.
func (d Dir) ReadFiles(names ...string) (Files, error) {
	if err := d.finishReplace(); err != nil {
		return nil, err
	}
	out := Files{}
	for _, name := range names {
		data, err := os.ReadFile(d.Path(name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read keys: %w", err)
		}
		out[name] = data
	}
	return out, nil
}

// Replace makes the files of the names what files say; those of which it says nothing
// are removed. A crash meanwhile leaves what the next Ensure or ReadFiles completes.
func (d Dir) Replace(files Files, names ...string) error {
	data, err := replacementOf(files, names)
	if err != nil {
		return err
	}
	if err := WriteFile(d.Path(journal), data, 0o600); err != nil {
		return err
	}
	if err := d.Sync(); err != nil {
		return err
	}
	return d.finishReplace()
}

func replacementOf(files Files, names []string) ([]byte, error) {
	r := replacement{Files: Files{}}
	for _, name := range names {
		if files[name] == nil {
			r.Remove = append(r.Remove, name)
		} else {
			r.Files[name] = files[name]
		}
	}
	return json.Marshal(r)
}

// replaceTime is how long another process may take to replace files.
const replaceTime = 2 * time.Second

// settle waits while the coordinator replaces files, if it runs as another user: what
// root finished in its place could not be read by it.
func (d Dir) settle() (finish bool) {
	for until := time.Now().Add(replaceTime); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		info, err := os.Stat(d.Path(journal))
		if err != nil || int(info.Sys().(*syscall.Stat_t).Uid) == os.Geteuid() {
			return err == nil
		}
	}
	return false
}

func (d Dir) finishReplace() error {
	if !d.settle() {
		return nil
	}
	data, err := os.ReadFile(d.Path(journal))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var r replacement
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		return fmt.Errorf("replace keys: read %s: %w", d.Path(journal), err)
	}
	for name, content := range r.Files {
		mode := os.FileMode(0o600)
		if name == CAFile || name == "sa.pub" {
			mode = 0o644
		}
		if err := WriteFile(d.Path(name), content, mode); err != nil {
			return err
		}
	}
	for _, name := range r.Remove {
		if err := os.Remove(d.Path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("replace keys: %w", err)
		}
	}
	if err := d.Sync(); err != nil {
		return err
	}
	if err := os.Remove(d.Path(journal)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("replace keys: %w", err)
	}
	return nil
}

// Sync has the names of files on the disk.
func (d Dir) Sync() error {
	f, err := os.Open(string(d))
	if err == nil {
		err = errors.Join(f.Sync(), f.Close())
	}
	if err != nil {
		return fmt.Errorf("replace keys: %w", err)
	}
	return nil
}
