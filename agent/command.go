package main

import (
	"context"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"github.com/shoal-project/shoal/agent/api"
	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/node"
	"github.com/shoal-project/shoal/agent/process"
)

// gcPercent trades a little CPU for a heap that stays near what is live.
const gcPercent = 50

// command is the program with these arguments. Cobra checks them and knows what to
// complete; config reads them, since flags override the file that they name.
func command(args []string) *cobra.Command {
	root := &cobra.Command{
		Use: "shoal-agent", Short: "Everything that a node of a Shoal cluster does",
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context(), args) },
	}
	flags := config.Default()
	root.PersistentFlags().String("config", "", "configuration file")
	flags.Flags(root.PersistentFlags())
	root.Version = node.Version
	root.SetVersionTemplate("{{.Version}}\n")
	root.AddCommand(cleanupCommand(args), checkCommand(args))
	root.SetArgs(args)
	process.AddManual(root)
	return root
}

// serve runs the node until ctx ends.
func serve(ctx context.Context, args []string) error {
	cfg, err := validConfig(args)
	if err != nil {
		return err
	}
	process.KeepOffProxy(cfg.ServiceCIDR, cfg.ClusterCIDR, ".svc", "."+cfg.ClusterDomain)
	log := newLogger(os.Stderr, &cfg)
	if err := api.CheckCertificate(cfg.Kubeconfig, cfg.RotatedCertificate(), cfg.ClusterCAs(), time.Now()); err != nil {
		return err
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if cfg.Hollow.Nodes > 0 {
		return runHollow(ctx, &cfg, log)
	}
	if err := cfg.CheckHost(); err != nil {
		return err
	}
	lock, err := lockData(&cfg)
	if err != nil {
		return err
	}
	defer lock.Close()
	process.LoosenTimers()
	return run(ctx, &cfg, log)
}

func validConfig(args []string) (config.Config, error) {
	cfg, err := config.Parse(args)
	if err != nil {
		return cfg, err
	}
	return cfg, cfg.Validate()
}

// checkCommand is what new programs are asked before they are used on a machine.
func checkCommand(args []string) *cobra.Command {
	return &cobra.Command{
		Use: "check", Short: "Tell whether this program can serve with the configuration of this machine; nothing is changed",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			cfg, err := validConfig(args)
			if err != nil {
				return err
			}
			err = api.CheckCertificate(cfg.Kubeconfig, cfg.RotatedCertificate(), cfg.ClusterCAs(), time.Now())
			if err != nil {
				return err
			}
			return cfg.CheckHost()
		},
	}
}

func cleanupCommand(args []string) *cobra.Command {
	var o cleanupOptions
	cmd := &cobra.Command{
		Use: "cleanup", Short: "End the node's pods and undo what its agent made on the machine; the agent must not run",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.ParseKnown(args)
			if err != nil {
				return err
			}
			if err := cfg.ValidateDirs(); err != nil {
				return err
			}
			return cleanup(cmd.Context(), &cfg, o, newLogger(os.Stderr, &cfg))
		},
	}
	cmd.Flags().BoolVar(&o.purge, "purge", false, "also delete the agent's files")
	cmd.Flags().DurationVar(&o.grace, "grace", 0,
		"ask containers to end before they are killed, and wait for each as long as its pod's grace period, but no longer than this")
	return cmd
}
