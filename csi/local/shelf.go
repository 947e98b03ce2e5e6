package local

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/csi/btrfs"
)

// record is what is kept of a volume or of a snapshot beside its image.
type record struct {
	Name string `json:"name"`
	// FSType is the file system on it, "" for a plain device.
	FSType string `json:"fsType,omitempty"`
	// Size is that of a volume that is a subvolume; images have their own.
	Size int64 `json:"size,omitempty"`
	// Source is what it was copied from.
	Source string `json:"source,omitempty"`
	// Charged is how much of what it holds counts for other volumes, at most: those
	// that wrote it, by their ids. Images have none.
	Charged map[string]int64 `json:"charged,omitempty"`
	// Made is when.
	Made time.Time `json:"made"`
}

// shelf is a directory with one directory for each volume, or for each snapshot.
type shelf struct {
	dir, record string
	// did is told of each step that lasts, nil for nobody. Tests end the process there.
	did func(step string)
}

func (s shelf) done(step string) {
	if s.did != nil {
		s.did(step)
	}
}

const (
	making   = ".making-"
	deleting = ".deleting-"
	image    = "image"
	data     = "data"
	// maxRecord bounds the file of a record.
	maxRecord = 64 << 10
)

var plain = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,62}$`)

// id is the directory's name for what is called name.
func id(name string) string {
	if plain.MatchString(name) {
		return name
	}
	return fmt.Sprintf("sha256-%x", sha256.Sum256([]byte(name)))[:48]
}

// open makes the directory, and removes what was begun and not ended. Before it does,
// undo ends what a copy that was begun may have left.
func (s shelf) open(undo func() error) error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	list, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	begun := func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), making) }
	if slices.ContainsFunc(list, begun) {
		if err := undo(); err != nil {
			return err
		}
	}
	for _, e := range list {
		if strings.HasPrefix(e.Name(), making) || strings.HasPrefix(e.Name(), deleting) {
			if err := discard(filepath.Join(s.dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// discard deletes a directory with what is kept in it.
func discard(dir string) error {
	if err := btrfs.Delete(filepath.Join(dir, data)); err != nil && !errors.Is(err, btrfs.ErrNone) {
		return err
	}
	return os.RemoveAll(dir)
}

// ids are those of all that is there.
func (s shelf) ids() ([]string, error) {
	list, err := os.ReadDir(s.dir) // sorted
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range list {
		if plain.MatchString(e.Name()) {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

func (s shelf) path(id string) string { return filepath.Join(s.dir, id) }

func (s shelf) image(id string) string { return filepath.Join(s.dir, id, image) }

// get reads a record and the volume's size; fs.ErrNotExist when there is none.
func (s shelf) get(id string) (r record, size int64, err error) {
	if !plain.MatchString(id) {
		return r, 0, fs.ErrNotExist
	}
	f, err := os.Open(filepath.Join(s.dir, id, s.record))
	if err != nil {
		return r, 0, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxRecord))
	if err != nil {
		return r, 0, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, 0, fmt.Errorf("%s: %w", f.Name(), err)
	}
	if r.FSType == btrfsType {
		_, err := os.Lstat(filepath.Join(s.dir, id, data))
		return r, r.Size, err
	}
	info, err := os.Stat(s.image(id))
	if err != nil {
		return r, 0, err
	}
	return r, info.Size(), nil
}

// put makes what fill puts into a directory exist as id: whole, or not at all. The
// record is written after.
func (s shelf) put(id string, r *record, fill func(dir string) error) (err error) {
	tmp := filepath.Join(s.dir, making+id)
	if err := discard(tmp); err != nil {
		return err
	}
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return err
	}
	s.done("directory made")
	defer func() {
		if err != nil {
			err = errors.Join(err, discard(tmp))
		}
	}()
	if err := fill(tmp); err != nil {
		return err
	}
	s.done("filled")
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := write(filepath.Join(tmp, s.record), text); err != nil {
		return err
	}
	s.done("record written")
	if err := synced(tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, filepath.Join(s.dir, id)); err != nil {
		return err
	}
	s.done("made")
	return synced(s.dir)
}

// change writes a record anew.
func (s shelf) change(id string, r record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	dir := filepath.Join(s.dir, id)
	fresh := filepath.Join(dir, s.record+".new")
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	if err := write(fresh, text); err != nil {
		return err
	}
	s.done("new record written")
	if err := os.Rename(fresh, filepath.Join(dir, s.record)); err != nil {
		return err
	}
	s.done("record changed")
	return synced(dir)
}

// remove deletes; nothing there is no error.
func (s shelf) remove(id string) error {
	if !plain.MatchString(id) {
		return nil
	}
	tmp := filepath.Join(s.dir, deleting+id)
	if err := discard(tmp); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(s.dir, id), tmp); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	s.done("deleted")
	if err := synced(s.dir); err != nil {
		return err
	}
	return discard(tmp)
}

func write(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, bytes.NewReader(text))
	return errors.Join(err, f.Sync(), f.Close())
}

// synced has files and directories on disk.
func synced(paths ...string) error {
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// free is what others than root may still write to the disk.
func (s shelf) free() (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.dir, &st); err != nil {
		return 0, &fs.PathError{Op: "statfs", Path: s.dir, Err: err}
	}
	return int64(st.Bavail) * st.Bsize, nil
}

func noSpace(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}

// copied makes a file that shares its blocks with another.
func copied(from, to string) (err error) {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	return unix.IoctlFileClone(int(target.Fd()), int(source.Fd()))
}

// shares tells whether files in a directory can share blocks, and which: without that,
// no room could be promised.
func shares(dir string) (bool, error) {
	from, to := filepath.Join(dir, making+"a"), filepath.Join(dir, making+"b")
	defer os.Remove(from)
	defer os.Remove(to)
	if err := errors.Join(os.RemoveAll(from), os.RemoveAll(to)); err != nil {
		return false, err
	}
	if err := write(from, make([]byte, 4096)); err != nil {
		if noSpace(err) {
			return false, nil // what is there can still be used
		}
		return false, err
	}
	if copied(from, to) != nil {
		return false, nil
	}
	_, err := extents(to)
	return err == nil, nil
}
