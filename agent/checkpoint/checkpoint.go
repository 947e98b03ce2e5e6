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
	volatile bool
	damaged  string // what is said of a damaged record

	mu      sync.Mutex
	last    map[string]uint32 // sum of what the file of a key holds
	pending *time.Timer
}

// Open makes the directory (0700) and returns the store on it.
func Open[T any](dir string, log *slog.Logger) (*Store[T], error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	return &Store[T]{
		dir: dir, log: log, last: map[string]uint32{},
		damaged: "a checkpoint record is damaged and was moved aside; its state is read again from the runtime and the API",
	}, nil
}

// OpenVolatile is Open for records about processes and namespaces, which end
// with the machine: none is forced to the disk. damaged is what the log says of
// a record that cannot be read.
func OpenVolatile[T any](dir, damaged string, log *slog.Logger) (*Store[T], error) {
	s, err := Open[T](dir, log)
	if err == nil {
		s.volatile, s.damaged = true, damaged
	}
	return s, err
}

// Put replaces the record of key. A record that is unchanged is not written.
func (s *Store[T]) Put(key string, v *T) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("checkpoint %s: %w", key, err)
	}
	sum := crc32.ChecksumIEEE(body)
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.last[key]; ok && old == sum {
		return nil
	}
	if err := s.write(key, sum, body); err != nil {
		return fmt.Errorf("checkpoint %s: %w", key, err)
	}
	s.last[key] = sum
	if s.pending == nil && !s.volatile {
		s.pending = time.AfterFunc(syncDelay, s.flush)
	}
	return nil
}

func (s *Store[T]) write(key string, sum uint32, body []byte) error {
	path := s.path(key)
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	buf := append(fmt.Appendf(make([]byte, 0, len(body)+10), "%08x\n", sum), body...)
	_, err = f.Write(buf)
	if err = errors.Join(err, f.Close()); err != nil {
		os.Remove(tmp)
		return err
	}
	return os.Rename(tmp, path)
}

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

// Get returns the record of key, or nil.
func (s *Store[T]) Get(key string) (*T, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.read(key)
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
			aside := filepath.Join(s.dir, name+".damaged")
			os.Rename(filepath.Join(s.dir, name), aside)
			s.log.Error(s.damaged, "record", key, "error", err, "file", aside)
			continue
		}
		if v != nil {
			out[key] = v
		}
	}
	return out, nil
}

func (s *Store[T]) read(key string) (*T, error) {
	data, err := os.ReadFile(s.path(key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	head, body, ok := bytes.Cut(data, []byte("\n"))
	if !ok || len(head) != 8 {
		return nil, errors.New("no checksum")
	}
	sum := crc32.ChecksumIEEE(body)
	if fmt.Sprintf("%08x", sum) != string(head) {
		return nil, errors.New("wrong checksum")
	}
	v := new(T)
	if err := json.Unmarshal(body, v); err != nil {
		return nil, err
	}
	s.last[key] = sum
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
		s.log.Warn("checkpoint is not on disk yet", "error", err)
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
