package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/shoal-project/shoal/agent/process"
)

func main() {
	process.SetUmask()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		if errors.Is(err, syscall.ENOSPC) {
			err = fmt.Errorf("%w: the disk is full, free some space", err)
		}
		if !errors.Is(err, errShown) {
			fmt.Fprintln(os.Stderr, "shoal:", err)
		}
		os.Exit(1)
	}
}

// errShown is an error whose message the user has read already.
var errShown = errors.New("shown")

func command() *cobra.Command {
	root := &cobra.Command{
		Use: "shoal", Short: "Run and inspect a Shoal cluster on this machine",
		SilenceUsage: true, SilenceErrors: true,
	}
	root.AddCommand(upCommand(), downCommand(), statusCommand(), imagesCommand(), secretsCommand(), gossipCommand(),
		keysCommand(),
		coordinatorsCommand(), membersCommand(), snapshotCommand(), tokenCommand(), joinCommand(), leaveCommand(),
		credentialsCommand(), upgradeCommand(), rebootCommand(), networkCommand())
	process.AddManual(root)
	return root
}

func upCommand() *cobra.Command {
	o := defaultOptions()
	var detach bool
	c := &cobra.Command{
		Use: "up", Short: "Start a one-machine cluster and keep it running (Ctrl-C stops it)", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return up(cmd.Context(), o, detach)
		},
	}
	o.flags(c.Flags())
	c.Flags().BoolVar(&detach, "detach", false, "return when the node is Ready and leave the cluster running")
	return c
}

func downCommand() *cobra.Command {
	o := defaultOptions()
	var purge bool
	c := &cobra.Command{
		Use: "down", Short: "Stop the cluster and its pods; its state stays unless --purge", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return down(cmd.Context(), o.DataDir, purge) },
	}
	c.Flags().StringVar(&o.DataDir, "data-dir", o.DataDir, "the cluster's data directory")
	c.Flags().BoolVar(&purge, "purge", false, "also delete every file of the cluster")
	return c
}

func statusCommand() *cobra.Command {
	o := defaultOptions()
	c := &cobra.Command{
		Use: "status", Short: "Show the cluster's processes, nodes and pods", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return status(cmd.Context(), os.Stdout, o.DataDir) },
	}
	c.Flags().StringVar(&o.DataDir, "data-dir", o.DataDir, "the cluster's data directory")
	return c
}
