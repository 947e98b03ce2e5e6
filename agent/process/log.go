package process

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

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

// Formats of the log.
const (
	Text = "text"
	JSON = "json"
)

// NewLogger makes the one log of the process, in a format. It sets klog's logger, which is
// the process's.
func NewLogger(w io.Writer, format string, level slog.Level, libraries Libraries) *slog.Logger {
	var handler slog.Handler = slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})
	if format == JSON {
		handler = slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: asUpstream})
	}
	klog.SetSlogLogger(slog.New(newQuiet(handler, libraries)))
	return slog.New(handler)
}

// verbosity is what upstream's components call the level of what only developers read.
const verbosity = 4

// asUpstream has a record in JSON look as those of upstream's components: ts in milliseconds
// since 1970, v, msg, err; durations as text. The level is there beside v, which does not
// tell a warning.
func asUpstream(groups []string, a slog.Attr) slog.Attr {
	switch {
	case len(groups) > 0:
	case a.Key == slog.TimeKey && a.Value.Kind() == slog.KindTime:
		return slog.Float64("ts", float64(a.Value.Time().UnixMicro())/1000)
	case a.Key == slog.LevelKey:
		level, ok := a.Value.Any().(slog.Level)
		if !ok {
			break
		}
		v := 0
		if level < slog.LevelInfo {
			v = verbosity
		}
		return slog.Attr{Value: slog.GroupValue(slog.Int("v", v), slog.String("level", strings.ToLower(level.String())))}
	}
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

// quiet passes what Libraries says, and no complaint again and again: many loops of
// libraries say what they fail for each second.
type quiet struct {
	slog.Handler
	libraries Libraries
	seen      *Repeats[complaint]
	with      string // what all records have
}

// complaint is a record with who writes it.
type complaint struct {
	to     slog.Handler
	record slog.Record
}

// complaintWindow begins with a library's complaint; the same are counted until it ends.
const complaintWindow = 5 * time.Minute

func newQuiet(to slog.Handler, libraries Libraries) quiet {
	return quiet{Handler: to, libraries: libraries, seen: NewRepeats(complaintWindow, func(last complaint, more int) {
		r := last.record.Clone()
		r.AddAttrs(slog.Int("more", more))
		_ = last.to.Handle(context.Background(), r) // the log has nobody to tell
	})}
}

func (h quiet) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= h.libraries.Level && h.Handler.Enabled(ctx, l)
}

func (h quiet) Handle(ctx context.Context, r slog.Record) error {
	if slices.ContainsFunc(h.libraries.Usual, func(u string) bool { return strings.HasPrefix(r.Message, u) }) {
		return nil
	}
	if r.Level >= slog.LevelWarn && !h.seen.First(h.text(r), complaint{h.Handler, r}) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// text is all that a record says.
func (h quiet) text(r slog.Record) string {
	var b strings.Builder
	b.WriteString(h.with + "\n" + r.Message)
	r.Attrs(func(a slog.Attr) bool {
		b.WriteString("\n" + a.String())
		return true
	})
	return b.String()
}

func (h quiet) WithAttrs(a []slog.Attr) slog.Handler {
	for i := range a {
		h.with += "\n" + a[i].String()
	}
	h.Handler = h.Handler.WithAttrs(a)
	return h
}

func (h quiet) WithGroup(name string) slog.Handler {
	h.with += "\n" + name
	h.Handler = h.Handler.WithGroup(name)
	return h
}
