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
	"strings"
	"syscall"
	"time"

	containerdlog "github.com/containerd/log"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/shoal-project/shoal/agent/config"
)

// gcPercent trades a little CPU for a heap that stays near what is live.
const gcPercent = 50

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, os.Args[1:]); err != nil && !errors.Is(err, pflag.ErrHelp) {
		if errors.Is(err, syscall.ENOSPC) {
			err = fmt.Errorf("%w: the disk is full, free some space", err)
		}
		fmt.Fprintln(os.Stderr, "shoal-agent:", err)
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
	cfg, err := config.Parse(args)
	if err != nil {
		return err
	}
	if err := cfg.Validate(); err != nil {
		return err
	}
	log := newLogger(os.Stderr, &cfg)
	if cleaning {
		return cleanup(ctx, &cfg, purge, log)
	}
	if err := cfg.CheckKubeconfig(time.Now()); err != nil {
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

// newLogger makes the one log of the process; what the libraries say comes
// into it from warnings up.
func newLogger(w io.Writer, cfg *config.Config) *slog.Logger {
	level, err := cfg.Level()
	if err != nil {
		level = slog.LevelInfo // validated before
	}
	_ = containerdlog.SetLevel("error") // a constant that it knows
	handler := slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})
	klog.SetSlogLogger(slog.New(quiet{handler}))
	return slog.New(handler)
}

// quiet passes only errors of the libraries that log by klog, and of these not
// what is tried again by itself while the API is away: the agent's own log tells
// that once.
type quiet struct{ slog.Handler }

func (h quiet) Handle(ctx context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "Failed to watch") || strings.HasPrefix(r.Message, "Unable to write event") {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

func (h quiet) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelError && h.Handler.Enabled(ctx, l)
}

func (h quiet) WithAttrs(a []slog.Attr) slog.Handler { return quiet{h.Handler.WithAttrs(a)} }
func (h quiet) WithGroup(name string) slog.Handler   { return quiet{h.Handler.WithGroup(name)} }
