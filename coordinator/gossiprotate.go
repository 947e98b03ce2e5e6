package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/coordinator/gossipkeys"
	"github.com/shoal-project/shoal/coordinator/pki"
)

func gossipCommand(load func(*cobra.Command) (config.Config, error)) *cobra.Command {
	cmd := &cobra.Command{Use: "gossip", Short: "Change the key that members of the gossip share"}
	var server string
	cmd.PersistentFlags().StringVar(&server, "server", "", "URL of the API server (default: this machine's)")
	cmd.AddCommand(&cobra.Command{
		Use: "rotate", Short: "Make a new key, have all members use it, drop the old one",
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := load(cmd)
			if err != nil {
				return err
			}
			return rotateGossip(cmd.Context(), cfg, server, cmd.OutOrStdout())
		},
	})
	return cmd
}

func rotateGossip(ctx context.Context, cfg config.Config, server string, out io.Writer) error {
	c, err := operator(cfg, server)
	if err != nil {
		return err
	}
	api, err := keysAPI(c)
	if err != nil {
		return err
	}
	nodes, err := gossipkeys.NewNodes(c)
	if err != nil {
		return err
	}
	r := gossipkeys.Rotation{
		File: keys(cfg).Path(pki.GossipKeyFile), Nodes: nodes, Settle: gossipkeys.Settle, Out: out,
		Spread: spread(api, gossipSet, pki.GossipKeyFile),
	}
	return r.Run(ctx)
}
