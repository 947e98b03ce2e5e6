package btrfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// level is that of our groups: an administrator's own are at others.
const level = 21352

// maxNested bounds how many subvolumes within one are looked at.
const maxNested = 1 << 14

// ErrTooMany tells of more subvolumes within one than anybody needs.
var ErrTooMany = fmt.Errorf("btrfs: more than %d subvolumes in one", maxNested)

func group(id uint64) uint64 { return level<<48 | id }

// told is where the kernel tells of the file system's groups.
func told(f *os.File) (string, error) {
	var info struct {
		_    [2]uint64
		fsid [16]byte
		_    [992]byte
	}
	if err := call(f, "look up the file system", fsInfo, unsafe.Pointer(&info)); err != nil {
		return "", err
	}
	u := info.fsid
	return fmt.Sprintf("/sys/fs/btrfs/%x-%x-%x-%x-%x/qgroups", u[:4], u[4:6], u[6:8], u[8:10], u[10:]), nil
}

// read reads a short file of the kernel's.
func read(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 64))
	return strings.TrimSpace(string(text)), err
}

// ModeSimple is the mode of simple quotas.
const ModeSimple = "squota"

// Simple tells whether simple quotas are on.
func Simple(f *os.File) (bool, error) {
	mode, err := Mode(f)
	return mode == ModeSimple, err
}

// Mode is that of the file system's quotas, "" where they are off.
func Mode(f *os.File) (string, error) {
	dir, err := told(f)
	if err != nil {
		return "", err
	}
	mode, err := read(filepath.Join(dir, "mode"))
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(dir); err == nil {
			return "qgroup", nil // a kernel that has no other mode
		}
		return "", nil
	}
	return mode, err
}

// KernelHasSimple tells whether Enable can do it.
func KernelHasSimple() bool {
	_, err := os.Stat("/sys/fs/btrfs/features/simple_quota")
	return err == nil
}

// Enable turns simple quotas on, which kernels before 6.7 then cannot mount. It refuses
// where quotas of another kind are on.
func Enable(f *os.File) error {
	switch has, err := Mode(f); {
	case err != nil || has == ModeSimple:
		return err
	case has != "":
		return fmt.Errorf("quotas of another kind (%s) are on: `btrfs quota disable %s` ends them", has, f.Name())
	}
	const simple = 4
	a := struct{ command, status uint64 }{simple, 0}
	err := call(f, "turn simple quotas on", quotaControl, unsafe.Pointer(&a))
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTTY) {
		return fmt.Errorf("the kernel has no simple quotas (Linux 6.7): %w", err)
	}
	return err
}

// top opens the file system's own subvolume: a change of groups needs room in that by
// which it is asked for, which a full one has not.
func top(f *os.File) (*os.File, error) {
	const own = 5
	return openID(f, own)
}

// Limit has a subvolume, and those within it, take no more of the disk.
func Limit(f *os.File, bytes int64) error {
	id, err := ID(f)
	if err != nil {
		return err
	}
	f, err = top(f)
	if err != nil {
		return err
	}
	defer f.Close()
	made := struct{ create, group uint64 }{1, group(id)}
	if err := call(f, "make a group", groupCreate, unsafe.Pointer(&made)); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := limit(f, id, uint64(bytes)); err != nil {
		return err
	}
	return assign(f, id, group(id), true)
}

// limit sets the limit of a group.
func limit(f *os.File, id, bytes uint64) error {
	const maxReferenced = 1
	a := struct{ group, flags, referenced, exclusive, _, _ uint64 }{group: group(id), flags: maxReferenced,
		referenced: bytes}
	return call(f, "limit a group", groupLimit, unsafe.Pointer(&a))
}

// lift ends the limits of subvolumes: what is full has no room to delete what is in it.
func lift(f *os.File, ids ...uint64) error {
	f, err := top(f)
	if err != nil {
		return err
	}
	defer f.Close()
	const none = ^uint64(0)
	for _, id := range ids {
		if err := limit(f, id, none); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// assign puts a subvolume into a group, or takes it out; done already is no error.
func assign(f *os.File, id, in uint64, into bool) error {
	a := struct{ assign, subvolume, group uint64 }{0, id, in}
	if into {
		a.assign = 1
	}
	err := call(f, "assign to a group", groupAssign, unsafe.Pointer(&a))
	if errors.Is(err, fs.ErrExist) || !into && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Use is what counts for a subvolume, and how much may.
type Use struct {
	Bytes int64
	// Coming are those of Bytes that are not on the disk yet, so that nobody else misses
	// them there.
	Coming int64
	Limit  int64
}

// Used tells what a subvolume, and those within it, take. fs.ErrNotExist where it has
// no limit, for instance since somebody turned quotas off.
func Used(f *os.File) (Use, error) {
	id, err := ID(f)
	if err != nil {
		return Use{}, err
	}
	dir, err := told(f)
	if err != nil {
		return Use{}, err
	}
	dir = filepath.Join(dir, fmt.Sprintf("%d_%d", level, id))
	var has [3]int64
	for i, name := range []string{"referenced", "rsv_data", "max_referenced"} {
		text, err := read(filepath.Join(dir, name))
		if err != nil {
			return Use{}, err
		}
		if has[i], err = strconv.ParseInt(text, 10, 64); err != nil {
			return Use{}, fmt.Errorf("%s: %w", filepath.Join(dir, name), err)
		}
	}
	return Use{Bytes: has[0] + has[1], Coming: has[1], Limit: has[2]}, nil
}

// Adopt puts into a subvolume's group those within it that are in none, or in
// another's: whoever made them chose that. It returns how many there were.
func Adopt(f *os.File) (strays int, err error) {
	id, err := ID(f)
	if err != nil {
		return 0, err
	}
	nested, err := nested(f, id)
	if err != nil || len(nested) == 0 {
		return 0, err
	}
	f, err = top(f)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	within := map[uint64]bool{id: true}
	for _, child := range nested {
		within[child] = true
	}
	for _, child := range nested {
		stray, err := adopt(f, child, id, within)
		if err != nil {
			return strays, err
		}
		if stray {
			strays++
		}
	}
	return strays, nil
}

// adopt is Adopt for one of those within. Their own groups are somebody's who has
// volumes of this kind inside.
func adopt(f *os.File, child, id uint64, within map[uint64]bool) (stray bool, err error) {
	groups, err := all(f, quotaTree, child, groupRelation, maxNested)
	if err != nil {
		return false, err
	}
	for _, g := range groups {
		if g>>48 == level && !within[g&^(level<<48)] {
			if err := assign(f, child, g, false); err != nil {
				return false, err
			}
			stray = true
		}
	}
	if slices.Contains(groups, group(id)) {
		return stray, nil
	}
	err = assign(f, child, group(id), true)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EINVAL) { // it is gone
		return stray, nil
	}
	return true, err
}

// nested are the subvolumes that lie within one, at any depth.
func nested(f *os.File, id uint64) (out []uint64, err error) {
	for at, next := id, 0; ; next++ {
		children, err := all(f, rootTree, at, rootRef, maxNested)
		if err != nil {
			return nil, err
		}
		if out = append(out, children...); len(out) > maxNested {
			return nil, ErrTooMany
		}
		if next == len(out) {
			return out, nil
		}
		at = out[next]
	}
}

// Sweep removes the groups of subvolumes that are gone. What copies of them still hold
// keeps a group: it goes another time.
func Sweep(f *os.File) error {
	dir, err := told(f)
	if err != nil {
		return err
	}
	groups, err := Groups(f)
	if err != nil {
		return err
	}
	for _, id := range groups {
		if _, err := os.Lstat(filepath.Join(dir, fmt.Sprintf("0_%d", id))); err == nil {
			continue
		}
		a := struct{ create, group uint64 }{0, group(id)}
		err := call(f, "remove a group", groupCreate, unsafe.Pointer(&a))
		if err != nil && !errors.Is(err, unix.EBUSY) && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Groups are the numbers of the subvolumes whose groups there are.
func Groups(f *os.File) ([]uint64, error) {
	dir, err := told(f)
	if err != nil {
		return nil, err
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []uint64
	for _, e := range list {
		number, ours := strings.CutPrefix(e.Name(), fmt.Sprintf("%d_", level))
		if id, err := strconv.ParseUint(number, 10, 48); ours && err == nil {
			out = append(out, id)
		}
	}
	return out, nil
}
