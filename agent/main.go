package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	containerdlog "github.com/containerd/log"

	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/process"
)

func main() {
	process.SetUmask()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := command(os.Args[1:]).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "shoal-agent:", process.Advise(err))
		os.Exit(1)
	}
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
	if cfg.LoggingFormat == process.JSON {
		_ = containerdlog.SetFormat(containerdlog.JSONFormat) // one too
	}
	return process.NewLogger(w, cfg.LoggingFormat, level, process.Libraries{Level: slog.LevelError, Usual: triedAgain})
}
