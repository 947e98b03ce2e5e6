package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/coordinator/encryption"
	"github.com/shoal-project/shoal/coordinator/pki"
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
			return fmt.Errorf("read %s: the file is missing, and stored Secrets are under its key %s; put it back from a backup, or name the file that has the key with --encryption-provider-config", file, key)
		}
		if err := file.Make(time.Now()); err != nil {
			return err
		}
	}
	return st.Encrypt(string(file), identity(), log)
}

// encryptionState serves encryption.State. Only who may read any path gets to it.
func encryptionState(st *store.Store, others func() []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hash, values, err := st.EncryptionState(r.Context())
		s := encryption.State{Hash: hash, Values: values, Others: others()}
		if err != nil {
			s.Error = err.Error()
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s)
	})
}

// otherCoordinators are those that the gossip knows to live.
func (s *parts) otherCoordinators() (names []string) {
	if s.gossip == nil {
		return nil
	}
	for _, m := range s.gossip.Members() {
		if m.Role == gossip.RoleCoordinator && !m.Local && m.State.Up() {
			names = append(names, m.Name+" "+m.API)
		}
	}
	return names
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
		s.log.Warn("Secrets are stored in the clear: an earlier version wrote them; `shoal secrets rewrite` encrypts them", "number", n, "err", err)
		return
	}
	s.log.Info("Secrets that an earlier version stored in the clear are encrypted now; the store's old files have them until they are written over: change the passwords that matter", "number", n)
}

func secretsCommand(load func(*cobra.Command) (config.Config, error)) *cobra.Command {
	cmd := &cobra.Command{Use: "secrets", Short: "Show and change the keys that the store is encrypted with"}
	var server string
	cmd.PersistentFlags().StringVar(&server, "server", "", "URL of the API server (default: this machine's)")
	add := func(use, short string, run func(context.Context, encryption.Rotation) error) {
		cmd.AddCommand(&cobra.Command{
			Use: use, Short: short, Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
			RunE: func(cmd *cobra.Command, _ []string) error {
				cfg, err := load(cmd)
				if err != nil {
					return err
				}
				r, err := rotation(cfg, server)
				if err != nil {
					return err
				}
				r.Out = cmd.OutOrStdout()
				return run(cmd.Context(), r)
			},
		})
	}
	add("status", "Show the keys' names and what is stored under each", func(ctx context.Context, r encryption.Rotation) error { return r.Status(ctx) })
	add("rotate", "Make a new key, rewrite what is stored with it, drop the old one", func(ctx context.Context, r encryption.Rotation) error { return r.Run(ctx, time.Now()) })
	add("rewrite", "Rewrite what is stored with the keys that come first in the file", func(ctx context.Context, r encryption.Rotation) error { return r.Rewrite(ctx) })
	return cmd
}

// rotation reaches the coordinator with a certificate for this purpose alone.
func rotation(cfg config.Config, server string) (encryption.Rotation, error) {
	r := encryption.Rotation{File: encryptionFile(cfg), Settle: encryption.Settle}
	c, err := operator(cfg, server)
	if err != nil {
		return r, err
	}
	r.API, err = encryption.NewAPI(c)
	return r, err
}

// operatorLifetime is longer than any rotation takes.
const operatorLifetime = 24 * time.Hour

func operator(cfg config.Config, server string) (*rest.Config, error) {
	ca, err := keys(cfg).CA()
	if err != nil {
		return nil, fmt.Errorf("%w (run this on the coordinator's machine, with its --data-dir or --config)", err)
	}
	if server == "" {
		host := cfg.BindAddress
		if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
			host = "127.0.0.1"
		}
		server = "https://" + net.JoinHostPort(host, strconv.Itoa(cfg.Port))
	}
	spec := pki.Spec{User: "shoal-secrets", Groups: []string{"system:masters"}, Lifetime: operatorLifetime}
	data, err := ca.Kubeconfig(server, spec, time.Now())
	if err != nil {
		return nil, err
	}
	c, err := clientcmd.RESTConfigFromKubeConfig(data)
	if err != nil {
		return nil, fmt.Errorf("connect to the API: %w", err)
	}
	c.QPS = -1
	return c, nil
}
