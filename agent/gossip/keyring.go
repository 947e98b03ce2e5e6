package gossip

import (
	"bufio"
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Limits of a key file: a rotation needs two keys, some need three.
const (
	maxKeys    = 8
	maxKeyFile = 4096
)

// Keyring holds the keys that all members share. The first one seals; each of
// them opens. It follows its file, so that keys are rotated without a restart:
// the new key is added as the second everywhere, then made the first
// everywhere, then the old one is removed everywhere.
type Keyring struct {
	path string
	ring atomic.Pointer[ring]

	mu    sync.Mutex // of the file
	stamp fileStamp
	told  string
}

// ring is one state of the keyring; it never changes.
type ring struct {
	keys [][]byte
	// whole seals what is not sealed for one member alone, one for each key.
	whole []cipher.AEAD
}

type fileStamp struct {
	changed time.Time
	size    int64
}

// NewKeyring returns a keyring that does not change.
func NewKeyring(keys ...[]byte) (*Keyring, error) {
	r, err := newRing(keys)
	if err != nil {
		return nil, err
	}
	k := &Keyring{}
	k.ring.Store(r)
	return k, nil
}

// LoadKeyring reads a key file: one key a line, 32 bytes in base64, the one
// that seals first. Empty lines and lines that begin with # count for nothing.
func LoadKeyring(path string) (*Keyring, error) {
	k := &Keyring{path: path}
	if err := k.read(); err != nil {
		return nil, err
	}
	return k, nil
}

func (k *Keyring) read() error {
	f, err := os.Open(k.path)
	if err != nil {
		return fmt.Errorf("gossip keys: %w", err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("gossip keys: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err != nil {
		return fmt.Errorf("gossip keys: %w", err)
	}
	keys, err := parseKeys(data)
	if err != nil {
		return fmt.Errorf("gossip keys %s: %w", k.path, err)
	}
	r, err := newRing(keys)
	if err != nil {
		return fmt.Errorf("gossip keys %s: %w", k.path, err)
	}
	k.stamp = fileStamp{info.ModTime(), info.Size()}
	k.ring.Store(r)
	return nil
}

// refresh reads the file again when it changed. A file that cannot be read is
// told once; the keys stay as they were.
func (k *Keyring) refresh(log *slog.Logger) {
	if k == nil || k.path == "" {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	info, err := os.Stat(k.path)
	if err == nil && (fileStamp{info.ModTime(), info.Size()}) == k.stamp {
		return
	}
	if err = k.read(); err != nil {
		if err.Error() != k.told {
			k.told = err.Error()
			log.Warn("the gossip keys stay as they were", "err", err)
		}
		return
	}
	k.told = ""
	log.Info("gossip keys were read again", "keys", len(k.ring.Load().keys))
}

// KeysPath is where the kubelet's API of an agent shows and takes keys.
const KeysPath = "/gossip/keys"

// Replace writes the key file, and uses its keys at once.
func (k *Keyring) Replace(file []byte) error {
	keys, err := parseKeys(file)
	if err == nil {
		_, err = newRing(keys)
	}
	if err != nil {
		return fmt.Errorf("gossip keys: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.path == "" {
		return errors.New("gossip keys: they are in no file here")
	}
	// The file of `shoal up` is the coordinator's too, which wrote it before.
	if old, err := os.ReadFile(k.path); err != nil || !bytes.Equal(old, file) {
		if err := replaceFile(k.path, file); err != nil {
			return fmt.Errorf("write gossip keys: %w", err)
		}
	}
	return k.read()
}

func replaceFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // 0600
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if info, statErr := os.Stat(path); statErr == nil && os.Geteuid() == 0 {
		st := info.Sys().(*syscall.Stat_t)
		err = errors.Join(err, f.Chown(int(st.Uid), int(st.Gid)))
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// Prints tell the keys in use apart without telling them, in their order.
func (k *Keyring) Prints() []string {
	r := k.current()
	if r == nil {
		return nil
	}
	return prints(r.keys)
}

// Prints are those of the keys in a key file.
func Prints(file []byte) ([]string, error) {
	keys, err := parseKeys(file)
	return prints(keys), err
}

func prints(keys [][]byte) (out []string) {
	for _, key := range keys {
		sum := sha256.Sum256(append([]byte("shoal gossip key "), key...))
		out = append(out, hex.EncodeToString(sum[:6]))
	}
	return out
}

func parseKeys(data []byte) ([][]byte, error) {
	if len(data) > maxKeyFile {
		return nil, fmt.Errorf("longer than %d bytes", maxKeyFile)
	}
	var keys [][]byte
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, err := base64.StdEncoding.DecodeString(line)
		if err != nil {
			return nil, fmt.Errorf("a line is not base64 of a key: %w", err)
		}
		keys = append(keys, key)
	}
	return keys, lines.Err()
}

// CheckKeys fails unless data is a file of keys that a Keyring takes.
func CheckKeys(data []byte) error {
	keys, err := parseKeys(data)
	if err == nil {
		_, err = newRing(keys)
	}
	if err != nil {
		return fmt.Errorf("gossip keys: %w", err)
	}
	return nil
}

func newRing(keys [][]byte) (*ring, error) {
	if len(keys) == 0 || len(keys) > maxKeys {
		return nil, fmt.Errorf("%d keys: give 1 to %d, one a line", len(keys), maxKeys)
	}
	r := &ring{keys: slices.Clone(keys)}
	for _, key := range keys {
		if len(key) != 32 {
			return nil, errors.New("a key has 32 bytes: make one with head -c 32 /dev/urandom | base64")
		}
		aead, err := derive(key, nil, "shoal gossip stream 1")
		if err != nil {
			return nil, err
		}
		r.whole = append(r.whole, aead)
	}
	return r, nil
}

// derive makes the cipher of a purpose (RFC 5869). Without the salt, which is
// the shared key, a secret of two members alone opens nothing.
func derive(secret, salt []byte, purpose string) (cipher.AEAD, error) {
	key, err := hkdf.Key(sha256.New, secret, salt, purpose, 32)
	if err != nil {
		return nil, fmt.Errorf("derive gossip key: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("derive gossip key: %w", err)
	}
	return cipher.NewGCM(block)
}

// current is the keyring's state now; nil without keys.
func (k *Keyring) current() *ring {
	if k == nil {
		return nil
	}
	return k.ring.Load()
}
