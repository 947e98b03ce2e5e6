package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	containerdlog "github.com/containerd/log"
	"github.com/spf13/pflag"

	"github.com/shoal-project/shoal/agent/api"
	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/process"
)

// gcPercent trades a little CPU for a heap that stays near what is live.
const gcPercent = 50

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, os.Args[1:]); err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "shoal-agent:", process.Advise(err))
		os.Exit(1)
	}
}

func command(ctx context.Context, args []string) error {
	cleaning := len(args) > 0 && args[0] == "cleanup"
	purge := false
	if cleaning {
		args = args[1:]
		kept := args[:0]
		for _, a := range args {
			if a == "--purge" {
				purge = true
			} else {
				kept = append(kept, a)
			}
		}
		args = kept
	}
	parse, validate := config.Parse, (*config.Config).Validate
	if cleaning {
		parse, validate = config.ParseKnown, (*config.Config).ValidateDirs
	}
	cfg, err := parse(args)
	if err != nil {
		return err
	}
	if err := validate(&cfg); err != nil {
		return err
	}
	log := newLogger(os.Stderr, &cfg)
	if cleaning {
		return cleanup(ctx, &cfg, purge, log)
	}
	if err := api.CheckCertificate(cfg.Kubeconfig, cfg.RotatedCertificate(), time.Now()); err != nil {
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
	return run(ctx, &cfg, log)
}

// triedAgain begins what the libraries say while the API is away, and try again by
// themselves: the agent's own log tells that once.
var triedAgain = []string{"Failed to watch", "Unable to write event"}

// newLogger makes the one log of the process; of what the libraries say errors come
// into it.
func newLogger(w io.Writer, cfg *config.Config) *slog.Logger {
	level, err := cfg.Level()
	if err != nil {
		level = slog.LevelInfo // validated before
	}
	_ = containerdlog.SetLevel("error") // a constant that it knows
	return process.NewLogger(w, level, process.Libraries{Level: slog.LevelError, Usual: triedAgain})
}
