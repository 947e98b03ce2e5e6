package pki

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Files are contents of files in the directory by their names.
type Files map[string][]byte

// journal lists files that are being replaced together.
const journal = ".replacing.json"

type replacement struct {
	Files  Files    `json:"files"`
	Remove []string `json:"remove"`
}

// ReadFiles reads those of the names that are there, as they were at one time.
func (d Dir) ReadFiles(names ...string) (out Files, err error) {
	err = d.whole(func() error {
		out, err = d.read(names)
		return err
	})
	return out, err
}

func (d Dir) read(names []string) (Files, error) {
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
	return d.whole(func() error {
		r := replacementOf(files, names)
		data, err := json.Marshal(r)
		if err != nil {
			return fmt.Errorf("replace keys: %w", err)
		}
		if err := WriteFile(d.Path(journal), data, 0o600); err != nil {
			return err
		}
		if err := d.Sync(); err != nil {
			return err
		}
		return d.apply(r)
	})
}

func replacementOf(files Files, names []string) replacement {
	r := replacement{Files: Files{}}
	for _, name := range names {
		if files[name] == nil {
			r.Remove = append(r.Remove, name)
		} else {
			r.Files[name] = files[name]
		}
	}
	return r
}

const (
	// lockFile is locked while files are replaced, or read together. Everybody who reads
	// the directory at all may lock it.
	lockFile = ".replacing.lock"
	// replaceTime is longer than files are replaced, or read.
	replaceTime = 5 * time.Second
)

// whole does something while no other process, and no other part of this one, replaces
// files, after it has completed what one that crashed has begun.
func (d Dir) whole(do func() error) error {
	unlock, err := d.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := d.complete(); err != nil {
		return err
	}
	return do()
}

func (d Dir) lock() (unlock func(), err error) {
	f, err := os.OpenFile(d.Path(lockFile), os.O_RDONLY|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o644)
	if errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil // without the directory there is nothing to replace
	}
	if err != nil {
		return nil, fmt.Errorf("lock keys: %w", err)
	}
	// Root may make it for a coordinator that is not root, with a umask of its own.
	if info, err := f.Stat(); err == nil && info.Mode().Perm() != 0o644 {
		if st := info.Sys().(*syscall.Stat_t); int(st.Uid) == os.Geteuid() && st.Nlink == 1 {
			_ = f.Chmod(0o644)
		}
	}
	for until := time.Now().Add(replaceTime); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Now().After(until) {
			_ = f.Close()
			return nil, fmt.Errorf("lock keys: %s: %w", f.Name(), err)
		}
	}
}

// complete does what the journal says that a crash has left.
func (d Dir) complete() error {
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
	return d.apply(r)
}

// apply writes the files as the journal's owner, whom root may do it for, and removes the
// journal.
func (d Dir) apply(r replacement) error {
	owner, err := os.Stat(d.Path(journal))
	if err != nil {
		return fmt.Errorf("replace keys: %w", err)
	}
	for name, content := range r.Files {
		mode := os.FileMode(0o600)
		if name == CAFile || name == "sa.pub" {
			mode = 0o644
		}
		if err := writeFile(d.Path(name), content, mode, owner); err != nil {
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
	if err := os.Remove(d.Path(journal)); err != nil {
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
