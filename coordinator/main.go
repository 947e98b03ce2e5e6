package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/shoal-project/shoal/agent/process"
	"github.com/shoal-project/shoal/coordinator/config"
)

// gcPercent: below 100 a burst of pods would spend a quarter of its time on
// collecting garbage. What a burst leaves is given back by trim.
const gcPercent = 100

func main() {
	process.SetUmask()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "shoal-coordinator:", process.Advise(err))
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var file string
	flags := config.Default()
	cmd := &cobra.Command{
		Use: "shoal-coordinator", Short: "The API, the scheduler and the controllers of a Shoal cluster",
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
	}
	cmd.PersistentFlags().StringVar(&file, "config", "", "configuration file (default "+config.DefaultFile+", when it exists)")
	flags.AddFlags(cmd.PersistentFlags())
	load := func(cmd *cobra.Command) (config.Config, error) { return loadConfig(cmd, file) }
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := load(cmd)
		if err != nil {
			return err
		}
		if os.Getenv("GOGC") == "" {
			debug.SetGCPercent(gcPercent)
		}
		return run(cmd.Context(), cfg, newLogger(os.Stderr, cfg.LoggingFormat, cfg.LogLevel))
	}
	cmd.AddCommand(kubeconfigCommand(load), credentialsCommand(load), secretsCommand(load), gossipCommand(load),
		keysCommand(load), joinCommand(load), coordinatorsCommand(load), snapshotCommand(load), checkCommand(load))
	process.AddManual(cmd)
	return cmd
}

// checkCommand is what a new program is asked before it is used on a machine.
func checkCommand(load func(*cobra.Command) (config.Config, error)) *cobra.Command {
	return &cobra.Command{
		Use: "check", Short: "Tell whether this program takes the configuration of this machine; nothing is changed",
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := load(cmd)
			return err
		},
	}
}

// newLogger makes the one log of the process; what the libraries say comes into
// it from warnings up.
func newLogger(w io.Writer, format, level string) *slog.Logger {
	var l slog.Level
	_ = l.UnmarshalText([]byte(level)) // validated with the configuration
	return process.NewLogger(w, format, l, process.Libraries{Level: slog.LevelWarn, Usual: usual})
}

// usual begins what the API server's library says when all is well: a client ends
// a session or a watch. That the
// audit log cannot be written is told once, not with each event.
var usual = []string{"Error on socket receive", "Failed to encode watch event", "Error in audit plugin 'log'"}
