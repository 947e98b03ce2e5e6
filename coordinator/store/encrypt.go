package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig/metrics"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
)

// reloadEvery is how often the encryption configuration is looked at; upstream
// takes a minute.
const reloadEvery = 10 * time.Second

// secrets are encrypted unless a configuration says otherwise.
var secrets = schema.GroupResource{Resource: "secrets"}

// clearText is what values in the clear are said to be under.
const clearText = "identity"

// encryption turns objects into what the disk has, and back, by the keys of a
// file that may change while the process runs.
type encryption struct {
	file   string
	server string // this API server, in metrics
	log    *slog.Logger
	// ctx bounds the connections to KMS plugins.
	ctx     context.Context
	stop    context.CancelFunc
	dynamic *encryptionconfig.DynamicTransformers

	mu      sync.Mutex
	hash    string // of the content in use
	covered map[schema.GroupResource]value.Transformer
	witness seen
}

// Encrypt has values written and read as the EncryptionConfiguration in file
// says. It is called once, before Options.
func (s *Store) Encrypt(file, server string, log *slog.Logger) error {
	e := &encryption{file: file, server: server, log: log}
	e.ctx, e.stop = context.WithCancel(context.Background())
	loaded, err := encryptionconfig.LoadEncryptionConfig(e.ctx, file, true, server)
	if err != nil {
		e.stop()
		return fmt.Errorf("encryptionProviderConfig %s: %w (put the file back from a backup, or correct it)", file, err)
	}
	if info, err := os.Stat(file); err == nil && info.Mode().Perm()&0o077 != 0 {
		log.Warn("the file with the store's encryption keys can be read by others: chmod 600 it", "file", file,
			"mode", info.Mode().Perm())
	}
	if err := healthy(e.ctx, loaded.HealthChecks[0]); err != nil {
		log.Warn("a KMS plugin does not answer: what it encrypted is read when it does", "file", file, "err", err)
	}
	metrics.RecordEncryptionConfigLastConfigInfo(server, loaded.EncryptionFileContentHash)
	e.hash, e.covered = loaded.EncryptionFileContentHash, loaded.Transformers
	e.dynamic = encryptionconfig.NewDynamicTransformers(loaded.Transformers, loaded.HealthChecks[0], func() {},
		loaded.KMSCloseGracePeriod)
	s.encryption = e
	return nil
}

// healthy asks the KMS plugins of a configuration.
func healthy(ctx context.Context, check healthz.HealthChecker) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/healthz/"+check.Name(), nil)
	if err != nil {
		return err
	}
	return check.Check(req)
}

// silent tells whether a resource is encrypted, and a KMS plugin in use does not
// answer.
func (e *encryption) silent(gr schema.GroupResource) bool {
	if e == nil {
		return false
	}
	e.mu.Lock()
	covered := covers(e.covered, gr)
	e.mu.Unlock()
	return covered && healthy(e.ctx, e.dynamic) != nil
}

// EncryptionHealth tells of the KMS plugins in use; nil without Encrypt.
func (s *Store) EncryptionHealth() healthz.HealthChecker {
	if s.encryption == nil {
		return nil
	}
	return s.encryption.dynamic
}

// transformer is what a resource's values go through.
func (s *Store) transformer(gr schema.GroupResource) value.Transformer {
	if s.encryption == nil {
		return identity.NewEncryptCheckTransformer()
	}
	return s.encryption.dynamic.TransformerForResource(gr)
}

// FollowEncryption takes over changes of the file until ctx ends. One that
// cannot be used is told once, and what was in use stays so.
func (s *Store) FollowEncryption(ctx context.Context) error {
	if s.encryption == nil {
		return nil
	}
	told := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(reloadEvery):
		}
		err := s.reload(ctx)
		if err == nil {
			told = ""
		} else if told != err.Error() && ctx.Err() == nil {
			told = err.Error()
			s.encryption.log.Error("the encryption of the store needs a look; the keys before stay in use",
				"file", s.encryption.file, "err", err)
		}
	}
}

// ReloadEncryption takes over a change of the file now.
func (s *Store) ReloadEncryption(ctx context.Context) error {
	if s.encryption == nil {
		return nil
	}
	return s.reload(ctx)
}

// reload uses the file's content if it has changed and everything stored can be
// read with it.
func (s *Store) reload(ctx context.Context) error {
	e := s.encryption
	e.mu.Lock()
	defer e.mu.Unlock()
	hash, err := encryptionconfig.GetEncryptionConfigHash(e.file)
	if err != nil {
		return err
	}
	if hash == e.hash {
		return s.watchWitness(ctx)
	}
	keep, drop := context.WithCancel(e.ctx)
	loaded, err := encryptionconfig.LoadEncryptionConfig(keep, e.file, true, e.server)
	if err == nil {
		err = healthy(keep, loaded.HealthChecks[0])
	}
	if err == nil {
		err = s.readable(ctx, loaded.Transformers)
	}
	if err != nil {
		drop()
		metrics.RecordEncryptionConfigAutomaticReloadFailure(e.server)
		return err
	}
	e.dynamic.Set(loaded.Transformers, drop, loaded.HealthChecks[0], loaded.KMSCloseGracePeriod)
	e.hash, e.covered = loaded.EncryptionFileContentHash, loaded.Transformers
	metrics.RecordEncryptionConfigAutomaticReloadSuccess(e.server, e.hash)
	e.log.Info("encryption configuration taken over", "file", e.file)
	return s.leaveWitness(ctx)
}

// CheckEncryption fails when the keys of the file do not fit what is stored:
// the watch caches would wait for ever.
func (s *Store) CheckEncryption(ctx context.Context) error {
	if s.encryption == nil {
		return nil
	}
	s.encryption.mu.Lock()
	defer s.encryption.mu.Unlock()
	if err := s.readable(ctx, s.encryption.covered); err != nil {
		return fmt.Errorf(
			"encryptionProviderConfig %s: %w; put the file back from the backup that was made with the store, and start again",
			s.encryption.file, err)
	}
	return s.leaveWitness(ctx)
}

// readable decrypts the witness and one value under each key of the resources
// that are or were encrypted. Those of a KMS are left out: its plugin may start
// later.
func (s *Store) readable(ctx context.Context, with map[schema.GroupResource]value.Transformer) error {
	if err := s.seesWitness(ctx, with); err != nil {
		return err
	}
	all, err := s.stored(ctx)
	if err != nil {
		return err
	}
	for gr, at := range all {
		if gr != secrets && !covers(with, gr) && !covers(s.encryption.covered, gr) && !at.sealed {
			continue
		}
		known := map[string]bool{}
		err := s.scan(ctx, at.below, func(key string, data []byte) error {
			name := keyOf(data)
			if known[name] || ofKMS(data) {
				return nil
			}
			known[name] = true
			t := encryptionconfig.StaticTransformers(with).TransformerForResource(gr)
			if _, _, err := t.TransformFromStorage(ctx, data, value.DefaultContext(key)); err != nil {
				return fmt.Errorf("stored %s are under %s, which it cannot read (%s: %w)", gr, name, key, err)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// EncryptionState looks whether the file has changed, and tells the hash of the
// content in use and, by encrypted resource, the number of values under each key.
func (s *Store) EncryptionState(ctx context.Context) (hash string, values map[string]map[string]int, err error) {
	if s.encryption == nil {
		return "", nil, errors.New("the store is not encrypted")
	}
	changed := s.reload(ctx)
	s.encryption.mu.Lock()
	hash, covered := s.encryption.hash, s.encryption.covered
	s.encryption.mu.Unlock()
	values = map[string]map[string]int{}
	all, err := s.stored(ctx)
	if err != nil {
		return hash, nil, err
	}
	for gr, at := range all {
		if !covers(covered, gr) && !at.sealed {
			continue
		}
		count := map[string]int{}
		if err := s.scan(ctx, at.below, func(_ string, data []byte) error {
			count[keyOf(data)]++
			return nil
		}); err != nil {
			return hash, nil, err
		}
		values[gr.String()] = count
	}
	return hash, values, changed
}

// covers tells whether a configuration speaks of a resource, by name or by one
// of upstream's wildcards.
func covers(with map[schema.GroupResource]value.Transformer, gr schema.GroupResource) bool {
	for _, name := range []schema.GroupResource{gr, {Group: gr.Group, Resource: "*"}, {Group: "*", Resource: "*"}} {
		if with[name] != nil {
			return true
		}
	}
	return false
}

// SecretsKey is a key that stored Secrets are under, "" when none is encrypted.
// It needs no configuration.
func (s *Store) SecretsKey(ctx context.Context) (string, error) {
	found := ""
	err := s.scan(ctx, prefix+"/secrets/", func(_ string, data []byte) error {
		if name := keyOf(data); name != clearText && found == "" {
			found = name
		}
		return nil
	})
	return found, err
}

// InClear counts the Secrets that new ones would be encrypted beside: an earlier
// version wrote them.
func (s *Store) InClear(ctx context.Context) (int, error) {
	if s.encryption == nil || s.encryption.writesClear(ctx) {
		return 0, nil
	}
	n := 0
	err := s.scan(ctx, prefix+"/secrets/", func(_ string, data []byte) error {
		if keyOf(data) == clearText {
			n++
		}
		return nil
	})
	return n, err
}

// writesClear tells whether new Secrets are not encrypted, as the operator wants.
func (e *encryption) writesClear(ctx context.Context) bool {
	data, err := e.dynamic.TransformerForResource(secrets).TransformToStorage(ctx, []byte(witnessText),
		value.DefaultContext(witnessKey))
	return err != nil || keyOf(data) == clearText
}

func ofKMS(data []byte) bool { return bytes.HasPrefix(data, []byte("k8s:enc:kms:")) }

// keyOf names what a value is under: PROVIDER:KEY of k8s:enc:PROVIDER:VERSION:KEY:.
func keyOf(data []byte) string {
	if !bytes.HasPrefix(data, []byte("k8s:enc:")) {
		return clearText
	}
	parts := bytes.SplitN(data[:min(len(data), 300)], []byte(":"), 6)
	if len(parts) < 6 {
		return string(bytes.Join(parts[2:min(len(parts), 4)], []byte(":")))
	}
	return string(parts[2]) + ":" + string(parts[4])
}
