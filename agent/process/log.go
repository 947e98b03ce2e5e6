package process

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"strings"

	"k8s.io/klog/v2"
)

// Libraries is what of the records of libraries that log by klog comes into the
// process's log.
type Libraries struct {
	// Level is the lowest one that passes.
	Level slog.Level
	// Usual are beginnings of what they say when all is well, or what the process
	// tells once by itself: these are dropped.
	Usual []string
}

// NewLogger makes the one log of the process. It sets klog's logger, which is the
// process's.
func NewLogger(w io.Writer, level slog.Level, libraries Libraries) *slog.Logger {
	handler := slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})
	klog.SetSlogLogger(slog.New(quiet{handler, libraries}))
	return slog.New(handler)
}

// quiet passes what Libraries says.
type quiet struct {
	slog.Handler
	libraries Libraries
}

func (h quiet) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= h.libraries.Level && h.Handler.Enabled(ctx, l)
}

func (h quiet) Handle(ctx context.Context, r slog.Record) error {
	if slices.ContainsFunc(h.libraries.Usual, func(u string) bool { return strings.HasPrefix(r.Message, u) }) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

func (h quiet) WithAttrs(a []slog.Attr) slog.Handler {
	return quiet{h.Handler.WithAttrs(a), h.libraries}
}
func (h quiet) WithGroup(name string) slog.Handler {
	return quiet{h.Handler.WithGroup(name), h.libraries}
}
