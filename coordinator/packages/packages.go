package packages

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"
)

// Path is where a package is put (PUT) and got (GET); the parameter digest is its
// SHA-256 in hexadecimal.
const Path = "/shoal/v1/packages"

// MaxSize is several times what a package has.
const MaxSize = 512 << 20

// keep is how many packages stay: that of an upgrade, and of the one before.
const keep = 2

// Shelf answers at Path.
type Shelf struct {
	// Dir is made when the first package comes.
	Dir string
	// Max bounds a package; MaxSize but in tests.
	Max int64
	Log *slog.Logger

	mu sync.Mutex // one package comes at a time
}

var digests = regexp.MustCompile(`^[0-9a-f]{64}$`)

func (s *Shelf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	digest := r.URL.Query().Get("digest")
	if !digests.MatchString(digest) {
		http.Error(w, "digest: the SHA-256 in 64 hexadecimal digits", http.StatusBadRequest)
		return
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		s.give(w, r, digest)
	case http.MethodPut:
		if err := s.take(http.MaxBytesReader(w, r.Body, s.Max), digest); err != nil {
			code := http.StatusInternalServerError
			if large := new(http.MaxBytesError); errors.As(err, &large) {
				code = http.StatusRequestEntityTooLarge
			} else if errors.Is(err, errDigest) {
				code = http.StatusBadRequest
			}
			http.Error(w, err.Error(), code)
			return
		}
		s.Log.Info("a package is here for nodes to get", "digest", digest)
		w.WriteHeader(http.StatusCreated)
	default:
		http.Error(w, "use GET or PUT", http.StatusMethodNotAllowed)
	}
}

func (s *Shelf) give(w http.ResponseWriter, r *http.Request, digest string) {
	f, err := os.Open(filepath.Join(s.Dir, digest))
	if errors.Is(err, fs.ErrNotExist) {
		http.Error(w, "no such package is here", http.StatusNotFound)
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer f.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", time.Time{}, f)
}

var errDigest = errors.New("what came does not have the digest")

// take writes a package down; its name is there when all of it is, and right.
func (s *Shelf) take(body io.Reader, digest string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return err
	}
	s.clear(filepath.Join(s.Dir, "part-*"), 0)
	part, err := os.CreateTemp(s.Dir, "part-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(part.Name()) }()
	sum := sha256.New()
	_, err = io.Copy(io.MultiWriter(part, sum), body)
	if err := errors.Join(err, part.Sync(), part.Close()); err != nil {
		return fmt.Errorf("keep a package: %w", err)
	}
	if hex.EncodeToString(sum.Sum(nil)) != digest {
		return errDigest
	}
	if err := os.Rename(part.Name(), filepath.Join(s.Dir, digest)); err != nil {
		return fmt.Errorf("keep a package: %w", err)
	}
	s.clear(filepath.Join(s.Dir, "[0-9a-f]*[0-9a-f]"), keep)
	return nil
}

// clear removes files but the newest some.
func (s *Shelf) clear(pattern string, keep int) {
	files, err := filepath.Glob(pattern)
	if err != nil {
		return
	}
	age := func(file string) int64 {
		info, err := os.Stat(file)
		if err != nil {
			return 0
		}
		return info.ModTime().UnixNano()
	}
	slices.SortFunc(files, func(a, b string) int { return int(min(max(age(b)-age(a), -1), 1)) })
	for _, file := range files[min(keep, len(files)):] {
		if err := os.Remove(file); err != nil {
			s.Log.Warn("an old package cannot be deleted", "file", file, "err", err)
		}
	}
}
