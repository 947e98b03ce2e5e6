package main

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/coordinator/encryption"
	"github.com/shoal-project/shoal/coordinator/pki"
)

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
				r, err := secretsRotation(cfg, server)
				if err != nil {
					return err
				}
				r.Out = cmd.OutOrStdout()
				return run(cmd.Context(), r)
			},
		})
	}
	add("status", "Show the keys' names and what is stored under each",
		func(ctx context.Context, r encryption.Rotation) error { return r.Status(ctx) })
	add("rotate", "Make a new key, rewrite what is stored with it, drop the old one",
		func(ctx context.Context, r encryption.Rotation) error { return r.Run(ctx, time.Now()) })
	add("rewrite", "Rewrite what is stored with the keys that come first in the file",
		func(ctx context.Context, r encryption.Rotation) error { return r.Rewrite(ctx) })
	return cmd
}

// secretsRotation reaches the coordinator with a certificate for this purpose alone.
func secretsRotation(cfg config.Config, server string) (encryption.Rotation, error) {
	r := encryption.Rotation{File: encryptionFile(cfg), Settle: encryption.Settle}
	c, err := operator(cfg, server)
	if err != nil {
		return r, err
	}
	if ownEncryption(cfg) {
		api, err := keysAPI(c)
		if err != nil {
			return r, err
		}
		name := filepath.Base(string(r.File))
		r.Spread, r.Restore = spread(api, secretsSet, name), restore(api, secretsSet, name)
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
