package volume

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/shoal-project/shoal/agent/beneath"
)

// file is one file of a projection.
type file struct {
	data []byte
	mode fs.FileMode
	user int // whom it belongs to, root mostly
}

// noGroup leaves files to root's.
const noGroup = -1

const (
	dataLink = "..data"
	dataNew  = "..data_tmp"
)

// mountPoints are paths within a projected volume on which containers mount others of
// the pod's volumes: true for one that is to be a directory, which the runtime cannot
// make by itself where it has made the volume read-only before.
type mountPoints map[string]bool

// writeAtomic makes dir show exactly files, all changed in one moment: they
// live in a directory of their own that the link ..data points to, and names
// in dir are links through it. Nothing is written when nothing changed. Mount points
// stay as they are: what is removed here is unmounted in containers.
//
// Containers mount dir read-only, but one that began earlier, or that may
// mount, could have changed it: nothing found in it is followed out of it,
// waited for or believed.
func writeAtomic(dir string, files map[string]file, group int, points mountPoints) error {
	for name := range files {
		if err := checkName(name); err != nil {
			return err
		}
	}
	d, err := beneath.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Chmod(0o755); err != nil {
		return err
	}
	old, err := current(d)
	if err != nil {
		return err
	}
	if old != "" && sameFiles(d, old, files) {
		return linkNames(d, files, points)
	}
	fresh := time.Now().UTC().Format("..2006_01_02_15_04_05.") + rand.Text()
	if err := replace(d, fresh, files, group); err != nil {
		return errors.Join(err, d.RemoveAll(fresh))
	}
	if err := linkNames(d, files, points); err != nil {
		return err
	}
	return removeOthers(d, fresh)
}

func checkName(name string) error {
	if name == "" || filepath.IsAbs(name) || strings.HasPrefix(name, "..") || !filepath.IsLocal(name) {
		return fmt.Errorf("invalid path %q: must be relative and must not begin with or contain '..'", name)
	}
	return nil
}

// current is the directory that ..data points to: one element that begins with
// "..", as this package makes them. A ..data of another form is not ours: it
// is removed, and counts as none.
func current(d *beneath.Dir) (string, error) {
	target, err := d.Root.Readlink(dataLink)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	ours := len(target) > len("..") && strings.HasPrefix(target, "..") && !strings.Contains(target, "/")
	if err == nil && ours && target != dataLink && target != dataNew {
		return target, nil
	}
	return "", d.RemoveAll(dataLink)
}

// replace writes files to a new directory and lets ..data point to it.
func replace(d *beneath.Dir, fresh string, files map[string]file, group int) error {
	if err := d.MkdirAll(fresh, 0o755); err != nil {
		return err
	}
	for name, f := range files {
		name = filepath.Join(fresh, name)
		if err := d.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := writeNew(d, name, f, group); err != nil {
			return err
		}
	}
	if err := d.RemoveAll(dataNew); err != nil {
		return err
	}
	if err := d.Root.Symlink(fresh, dataNew); err != nil {
		return err
	}
	return d.Root.Rename(dataNew, dataLink)
}

// writeNew makes a file; owner and mode are set on what was made, not on what
// has its name a moment later.
func writeNew(d *beneath.Dir, name string, f file, group int) error {
	w, err := d.Root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = w.Write(f.data)
	if f.user != 0 || group != noGroup {
		err = errors.Join(err, w.Chown(f.user, group))
	}
	// By Chmod, as the umask takes bits that the pod's author asked for.
	return errors.Join(err, w.Chmod(f.mode), w.Close())
}

// errDiffers ends a comparison.
var errDiffers = errors.New("the volume shows something else")

// sameFiles tells whether the directory named old holds exactly files.
func sameFiles(d *beneath.Dir, old string, files map[string]file) bool {
	n := 0
	err := d.Walk(old, func(e *beneath.Entry) error {
		if e.IsDir() {
			return nil
		}
		want, ok := files[e.Path]
		if !ok || fs.FileMode(e.Stat.Mode).Perm() != want.mode.Perm() || e.Stat.Size != int64(len(want.data)) {
			return errDiffers
		}
		n++
		return nil
	})
	if err != nil || n != len(files) {
		return false
	}
	for name, want := range files {
		have, err := d.ReadFile(filepath.Join(old, name), int64(len(want.data)), beneath.NoLinks)
		if err != nil || string(have) != string(want.data) {
			return false
		}
	}
	return true
}

// linkNames makes the names that users see, and removes those that are gone
// and what is there in place of a link of ours, unless something is mounted on it.
func linkNames(d *beneath.Dir, files map[string]file, points mountPoints) error {
	want, kept := map[string]bool{}, map[string]bool{}
	for name := range files {
		want[top(name)] = true
	}
	for path := range points {
		kept[top(path)] = true
	}
	names, err := d.Names(".")
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasPrefix(name, "..") {
			continue
		}
		target, err := d.Root.Readlink(name)
		ours, other := err == nil && target == filepath.Join(dataLink, name), err != nil
		if want[name] && ours || kept[name] && other {
			delete(want, name)
		} else if err := d.RemoveAll(name); err != nil {
			return err
		}
	}
	for name := range want {
		if err := d.Root.Symlink(filepath.Join(dataLink, name), name); err != nil {
			return err
		}
	}
	for path, directory := range points {
		if !directory {
			continue
		}
		if err := d.MkdirAll(path, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// top is the first element of a path.
func top(path string) string {
	first, _, _ := strings.Cut(path, "/")
	return first
}

// removeOthers removes the directories of before, and what a crash left.
func removeOthers(d *beneath.Dir, keep string) error {
	names, err := d.Names(".")
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		if strings.HasPrefix(name, "..") && name != dataLink && name != keep {
			errs = append(errs, d.RemoveAll(name))
		}
	}
	return errors.Join(errs...)
}
