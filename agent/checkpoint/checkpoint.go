package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// syncDelay is how long records gather before they are flushed to the disk.
// A crash of the agent loses nothing; a crash of the machine may lose the
// records of this time, whose pods the API still knows.
const syncDelay = 200 * time.Millisecond

const suffix = ".json"

// Store is one directory of records of type T.
type Store[T any] struct {
	dir      string
	log      *slog.Logger
	keys     *Keys // nil: records are in the clear
	volatile bool
	damaged  string // what is said of a damaged record

	mu      sync.Mutex
	last    map[string]uint32 // sum of what the file of a key holds
	pending *time.Timer
}

// Open makes the directory (0700) and returns the store on it. Records are
// sealed with keys, those that are there too; without keys they are in the
// clear, which is for those that hold no secret.
func Open[T any](dir string, keys *Keys, log *slog.Logger) (*Store[T], error) {
	return open(&Store[T]{
		dir:     dir,
		keys:    keys,
		log:     log,
		damaged: "a checkpoint record is damaged and was moved aside; its state is read again from the runtime and the API",
	})
}

// OpenVolatile is Open for records about processes and namespaces, which end
// with the machine: none is forced to the disk. damaged is what the log says of
// a record that cannot be read.
func OpenVolatile[T any](dir string, keys *Keys, damaged string, log *slog.Logger) (*Store[T], error) {
	return open(&Store[T]{
		dir:      dir,
		keys:     keys,
		log:      log,
		damaged:  damaged,
		volatile: true,
	})
}

func open[T any](s *Store[T]) (*Store[T], error) {
	if err := s.makeDir(); err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	s.last = map[string]uint32{}
	if s.keys != nil {
		if err := s.adopt(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// makeDir makes the store's directory. What else has its name is moved aside.
func (s *Store[T]) makeDir() error {
	if info, err := os.Stat(s.dir); err == nil && !info.IsDir() {
		aside, err := moveAside(s.dir)
		if err != nil {
			return fmt.Errorf("%s is no directory, move it away: %w", s.dir, err)
		}
		s.log.Error("what should be a directory of records is none, and was moved aside",
			"directory", s.dir, "file", aside)
	}
	return os.MkdirAll(s.dir, 0o700)
}

// moveAside gives a file or directory a name that no record has, in the place of what was
// moved there before.
func moveAside(path string) (aside string, err error) {
	aside = path + damagedSuffix
	if err = os.Rename(path, aside); err == nil {
		return aside, nil
	}
	if os.RemoveAll(aside) == nil { // a directory takes no other's place
		err = os.Rename(path, aside)
	}
	return aside, err
}

// Put replaces the record of key. A record that is unchanged is not written.
func (s *Store[T]) Put(key string, v *T) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("checkpoint %s: %w", key, err)
	}
	if len(body) > maxRecord-headSize-overhead {
		return fmt.Errorf("checkpoint %s: %w", key, errTooLarge) // it would not be read
	}
	sum := crc32.ChecksumIEEE(body)
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.last[key]; ok && old == sum {
		return nil
	}
	if err := s.write(key, body); err != nil {
		return fmt.Errorf("checkpoint %s: %w", key, err)
	}
	s.last[key] = sum
	if s.pending == nil && !s.volatile {
		s.pending = time.AfterFunc(syncDelay, s.flush)
	}
	return nil
}

// PutNow is Put for a record that is on the disk when it returns, so that not even a
// crash of the machine loses it.
func (s *Store[T]) PutNow(key string, v *T) error {
	if err := s.Put(key, v); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, path := range []string{s.path(key), s.dir} {
		if err := synced(path); err != nil {
			return fmt.Errorf("checkpoint %s: %w", key, err)
		}
	}
	return nil
}

func synced(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (s *Store[T]) write(key string, body []byte) error {
	data, err := s.encode(key, body)
	if err != nil {
		return err
	}
	path := s.path(key)
	tmp := path + ".tmp"
	f, err := s.create(tmp)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err != nil {
		os.Remove(tmp)
		return err
	}
	rename := os.Rename
	if s.volatile {
		rename = replace
	}
	err = rename(tmp, path)
	if info, statErr := os.Lstat(path); err != nil && statErr == nil && info.IsDir() {
		s.setAside(key, damage{err})
		err = rename(tmp, path)
	}
	return err
}

// create opens a file to write. The directory may be gone, with all that was in it: an
// administrator had the node forget it.
func (s *Store[T]) create(path string) (*os.File, error) {
	const flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	f, err := os.OpenFile(path, flags, 0o600)
	if errors.Is(err, unix.EISDIR) && os.Remove(path) == nil {
		f, err = os.OpenFile(path, flags, 0o600)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, err
	}
	clear(s.last)
	return os.OpenFile(path, flags, 0o600)
}

// replace is rename(2) without what ext4 does beside it: it begins to write a file to the
// disk that replaces another (auto_da_alloc in ext4(5)), which takes 0.2 ms, and many times
// that while the disk is busy. After a crash of the machine the new file may be empty.
func replace(tmp, path string) error {
	if err := unix.Renameat2(unix.AT_FDCWD, tmp, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE); err != nil {
		return os.Rename(tmp, path) // nothing is there yet, or the file system cannot
	}
	return os.Remove(tmp)
}

// encode makes a file of a record: sealed, or with a sum before it.
func (s *Store[T]) encode(key string, body []byte) ([]byte, error) {
	if s.keys != nil {
		return s.keys.seal(s.name(), key, body)
	}
	return append(fmt.Appendf(make([]byte, 0, len(body)+10), "%08x\n", crc32.ChecksumIEEE(body)), body...), nil
}

// decode is what encode was given, of either form: records of an earlier agent
// are in the clear until they have been adopted.
func (s *Store[T]) decode(key string, data []byte) ([]byte, error) {
	if sealed(data) {
		if s.keys == nil {
			return nil, errOtherKey
		}
		return s.keys.open(s.name(), key, data)
	}
	head, body, ok := bytes.Cut(data, []byte("\n"))
	if !ok || len(head) != 8 {
		return nil, errors.New("no checksum")
	}
	if fmt.Sprintf("%08x", crc32.ChecksumIEEE(body)) != string(head) {
		return nil, errors.New("wrong checksum")
	}
	return body, nil
}

// name is the store's in what its records are sealed with.
func (s *Store[T]) name() string { return filepath.Base(s.dir) }

// Delete forgets key; a key that is not there is no error.
func (s *Store[T]) Delete(key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.last, key)
	err := os.Remove(s.path(key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Get returns the record of key, or nil. One that is damaged is moved aside as
// by All.
func (s *Store[T]) Get(key string) (*T, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.read(key)
	if err != nil {
		s.setAside(key, err)
	}
	return v, err
}

// damage is an error of a record, not of reading it.
type damage struct{ error }

// setAside moves a damaged record out of the way and tells so. One that could
// not be read for another reason stays.
func (s *Store[T]) setAside(key string, cause error) {
	if !errors.As(cause, new(damage)) {
		s.log.Error("a checkpoint record cannot be read", "record", key, "err", cause)
		return
	}
	aside, err := moveAside(s.path(key))
	cause = errors.Join(cause, err)
	s.log.Error(s.damaged, "record", key, "err", cause, "file", aside)
}

// All returns every record that can be read. One that is damaged is moved
// aside (its name ends in .damaged) and told once.
func (s *Store[T]) All() (map[string]*T, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	out := make(map[string]*T, len(entries))
	for _, e := range entries {
		name := e.Name()
		if strings.HasSuffix(name, ".tmp") {
			os.Remove(filepath.Join(s.dir, name))
			continue
		}
		if !strings.HasSuffix(name, suffix) {
			continue
		}
		key, err := url.PathUnescape(strings.TrimSuffix(name, suffix))
		if err != nil {
			continue
		}
		v, err := s.read(key)
		if err != nil {
			s.setAside(key, err)
			continue
		}
		if v != nil {
			out[key] = v
		}
	}
	return out, nil
}

// Clear forgets the keys that match.
func (s *Store[T]) Clear(match func(key string) bool) error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	for _, e := range entries {
		name, _ := strings.CutSuffix(e.Name(), damagedSuffix)
		name, record := strings.CutSuffix(name, suffix)
		if key, err := url.PathUnescape(name); err != nil || !record || !match(key) {
			continue
		}
		if err := os.Remove(filepath.Join(s.dir, e.Name())); err != nil {
			return fmt.Errorf("checkpoint: %w", err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.last)
	return nil
}

func (s *Store[T]) read(key string) (*T, error) {
	data, err := readRecord(s.path(key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if errors.Is(err, errTooLarge) || errors.Is(err, unix.EISDIR) {
		return nil, damage{err}
	}
	if err != nil {
		return nil, err
	}
	body, err := s.decode(key, data)
	if err != nil {
		return nil, damage{err}
	}
	v := new(T)
	if err := json.Unmarshal(body, v); err != nil {
		return nil, damage{err}
	}
	s.last[key] = crc32.ChecksumIEEE(body)
	return v, nil
}

// flush makes what was written durable with one call for the filesystem.
func (s *Store[T]) flush() {
	s.mu.Lock()
	s.pending = nil
	s.mu.Unlock()
	d, err := os.Open(s.dir)
	if err != nil {
		return
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		s.log.Warn("checkpoint is not on disk yet", "err", err)
	}
}

// Close flushes what is pending.
func (s *Store[T]) Close() {
	s.mu.Lock()
	pending := s.pending != nil && s.pending.Stop()
	s.mu.Unlock()
	if pending {
		s.flush()
	}
}

func (s *Store[T]) path(key string) string {
	return filepath.Join(s.dir, url.PathEscape(key)+suffix)
}
