package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/coordinator/encryption"
	"github.com/shoal-project/shoal/coordinator/store"
)

// encryptionFile says how the store is encrypted.
func encryptionFile(cfg config.Config) encryption.File {
	if cfg.EncryptionProviderConfig != "" {
		return encryption.File(cfg.EncryptionProviderConfig)
	}
	return encryption.File(keys(cfg).Path("encryption.yaml"))
}

// encryptStore has the store encrypt, with a key made now when there never was
// one. A key that is lost is not replaced: what it encrypted would be lost too.
func encryptStore(ctx context.Context, cfg config.Config, st *store.Store, log *slog.Logger) error {
	file := encryptionFile(cfg)
	_, err := os.Stat(string(file))
	if errors.Is(err, fs.ErrNotExist) && cfg.EncryptionProviderConfig == "" {
		key, err := st.SecretsKey(ctx)
		if err != nil {
			return err
		}
		if key != "" {
			return fmt.Errorf(
				"read %s: the file is missing, and stored Secrets are under its key %s; put it back from a backup, or name the file that has the key with --encryption-provider-config",
				file, key)
		}
		if err := file.Make(time.Now()); err != nil {
			return err
		}
	}
	return st.Encrypt(string(file), hostName(), log)
}

// encryptionState serves encryption.State. Only who may read any path gets to it.
func encryptionState(st *store.Store, others func() []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			if err := st.Forget(r.Context()); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
			return
		}
		hash, values, err := st.EncryptionState(r.Context())
		s := encryption.State{Hash: hash, Values: values, Others: others(), Outside: !st.Embedded()}
		if err != nil {
			s.Error = err.Error()
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s)
	})
}

// encryptClear has Secrets encrypted that an earlier version wrote in the clear.
// What stays so is told, and tried again at the next start.
func (s parts) encryptClear(ctx context.Context) {
	n, err := s.store.InClear(ctx)
	if err != nil || n == 0 {
		return // without the store there is more to tell than this
	}
	api, err := encryption.NewAPI(s.api.Loopback())
	if err == nil {
		_, err = api.Rewrite(ctx, "secrets")
	}
	if err != nil {
		s.log.Warn(
			"Secrets are stored in the clear: an earlier version wrote them; `shoal secrets rewrite` encrypts them",
			"number", n, "err", err)
		return
	}
	if s.store.Embedded() {
		err = s.store.Forget(ctx)
	}
	if err != nil {
		s.log.Warn("the store's history has Secrets in the clear; `shoal secrets rewrite` drops it", "err", err)
	}
	s.log.Info(
		"Secrets that an earlier version stored in the clear are encrypted now; the store's log and backups have them until they are written over: change the passwords that matter",
		"number", n)
}
