package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/coordinator/pki"
	"github.com/shoal-project/shoal/coordinator/rotation"
)

// keysCommand changes the keys that sign: the cluster's CA, and that of service accounts.
func keysCommand(load func(*cobra.Command) (config.Config, error)) *cobra.Command {
	cmd := &cobra.Command{Use: "keys", Short: "Show and change the keys that all coordinators have alike"}
	var server string
	var force bool
	cmd.PersistentFlags().StringVar(&server, "server", "", "URL of the API server (default: this machine's)")
	rotating := map[string]pki.Rotating{pki.CAs.Name: pki.CAs, pki.ServiceAccounts.Name: pki.ServiceAccounts}
	add := func(use, short string, run func(context.Context, rotation.Rotation) error) {
		c := &cobra.Command{
			Use: use + " ca|serviceaccount", Short: short, Args: cobra.ExactArgs(1),
			SilenceUsage: true, SilenceErrors: true,
			ValidArgs: []string{pki.CAs.Name, pki.ServiceAccounts.Name},
			RunE: func(cmd *cobra.Command, args []string) error {
				of, known := rotating[args[0]]
				if !known {
					return fmt.Errorf("%s: give ca or serviceaccount (for others: shoal secrets rotate, shoal gossip rotate)",
						args[0])
				}
				cfg, err := load(cmd)
				if err != nil {
					return err
				}
				r, err := newRotation(cfg, server, of, cmd.OutOrStdout())
				if err != nil {
					return err
				}
				r.Force = force
				return run(cmd.Context(), r)
			},
		}
		c.Flags().BoolVar(&force, "force", false, "go on without coordinators and nodes that are behind")
		cmd.AddCommand(c)
	}
	add("rotate", "Make a new key and have all believe it; that of service accounts signs then", rotate)
	add("sign", "Have the new key sign; what the old one has signed stays good", sign)
	add("drop", "End a rotation: what the old key has signed is good no more",
		func(ctx context.Context, r rotation.Rotation) error { return r.Drop(ctx) })
	cmd.AddCommand(&cobra.Command{
		Use: "forget NAME", Short: "Have nobody wait for a coordinator that is gone for good; with an outside etcd",
		Args: cobra.ExactArgs(1), SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := load(cmd)
			if err != nil {
				return err
			}
			c, err := operator(cfg, server)
			if err != nil {
				return err
			}
			api, err := keysAPI(c)
			if err != nil {
				return err
			}
			return api.Forget(cmd.Context(), args[0])
		},
	})
	cmd.AddCommand(&cobra.Command{
		Use: "status", Short: "Show how far rotations are, and who is behind", Args: cobra.NoArgs,
		SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := load(cmd)
			if err != nil {
				return err
			}
			c, err := operator(cfg, server)
			if err != nil {
				return err
			}
			return showKeys(cmd.Context(), cfg, c, cmd.OutOrStdout())
		},
	})
	return cmd
}

// rotate goes as far as nobody but the cluster has to do anything.
func rotate(ctx context.Context, r rotation.Rotation) error {
	if err := r.Begin(ctx); err != nil {
		return err
	}
	if r.Of.Name == pki.ServiceAccounts.Name {
		return sign(ctx, r)
	}
	_, err := fmt.Fprintln(r.Out, "give who has a kubeconfig a new one, which believes both CAs; then: shoal keys sign ca")
	return err
}

func sign(ctx context.Context, r rotation.Rotation) error {
	err := r.Sign(ctx)
	switch {
	case err != nil:
	case r.Of.Name == pki.CAs.Name:
		_, err = fmt.Fprintln(r.Out, "give who has a kubeconfig a new one, which the new CA has signed, and start pods anew that read "+
			"their CA once; then: shoal keys drop ca")
	default:
		_, err = fmt.Fprintln(r.Out, "pods get new tokens within the hour; when tokens that were given out otherwise have ended: "+
			"shoal keys drop serviceaccount")
	}
	return err
}

func newRotation(cfg config.Config, server string, of pki.Rotating, out io.Writer) (r rotation.Rotation, err error) {
	c, err := operator(cfg, server)
	if err != nil {
		return r, err
	}
	api, err := keysAPI(c)
	if err != nil {
		return r, err
	}
	r = rotation.Rotation{Of: of, Dir: keys(cfg), API: api, Out: out}
	if of.Name == pki.CAs.Name {
		client, err := kubernetes.NewForConfig(c)
		if err != nil {
			return r, fmt.Errorf("connect to the API: %w", err)
		}
		r.Others = func(ctx context.Context, at pki.Phase) error { return waitForNodes(ctx, client, r.Dir, at) }
	}
	return r, nil
}

func keysAPI(c *rest.Config) (rotation.Client, error) {
	d, err := discovery.NewDiscoveryClientForConfig(c)
	if err != nil {
		return rotation.Client{}, fmt.Errorf("connect to the API: %w", err)
	}
	return rotation.Client{REST: d.RESTClient()}, nil
}

// spread has all coordinators take over the content of a file.
func spread(api rotation.API, set, name string) func(ctx context.Context, old, data []byte) error {
	return func(ctx context.Context, old, data []byte) error {
		return rotation.Spread(ctx, api, rotation.Change{Set: set, Files: pki.Files{name: data}}, pki.Files{name: old})
	}
}

// restore has them take the old content in the place of what spread could not bring to all.
func restore(api rotation.API, set, name string) func(ctx context.Context, old, data []byte) error {
	return func(ctx context.Context, old, data []byte) error {
		return rotation.Restore(ctx, api, rotation.Change{Set: set, Files: pki.Files{name: old}}, pki.Files{name: data})
	}
}

// showKeys prints the step of each set, and who is behind.
func showKeys(ctx context.Context, cfg config.Config, c *rest.Config, out io.Writer) error {
	api, err := keysAPI(c)
	if err != nil {
		return err
	}
	status, err := api.Status(ctx)
	if err != nil {
		return err
	}
	for _, set := range status.Sets {
		fmt.Fprintf(out, "%s: %s", set.Name, rotation.Words(set.Step))
		if set.Generation > 0 {
			fmt.Fprintf(out, ", since %s", set.Since.Local().Format(time.RFC3339))
		}
		fmt.Fprintf(out, "\n  followed by %s\n", strings.Join(set.Followed, ", "))
		for _, b := range set.Behind {
			fmt.Fprintf(out, "  behind: %s\n", b)
		}
		if set.Name != pki.CAs.Name {
			continue
		}
		client, err := kubernetes.NewForConfig(c)
		if err != nil {
			return fmt.Errorf("connect to the API: %w", err)
		}
		if err := nodesFollow(ctx, client, keys(cfg), pki.Phase(set.Step)); err != nil {
			fmt.Fprintf(out, "  behind: %s\n", strings.ReplaceAll(err.Error(), "\n", "\n  behind: "))
		}
	}
	return nil
}
