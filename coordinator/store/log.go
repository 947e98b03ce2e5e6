package store

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/shoal-project/shoal/agent/process"
)

// logCore carries etcd's warnings and errors into slog.
type logCore struct {
	log    *slog.Logger
	fields []zapcore.Field
	// seen is of all cores that were made from one.
	seen *process.Repeats[zapcore.Entry]
}

// repeatWindow begins with a message of etcd's; its like are counted until it ends.
const repeatWindow = 10 * time.Second

func newLogCore(log *slog.Logger) logCore {
	c := logCore{log: log}
	c.seen = process.NewRepeats(repeatWindow, func(last zapcore.Entry, more int) {
		c.send(last, map[string]any{"more": more})
	})
	return c
}

func (c logCore) Enabled(l zapcore.Level) bool { return l >= zapcore.WarnLevel && c.log != nil }

func (c logCore) With(f []zapcore.Field) zapcore.Core {
	c.fields = append(c.fields[:len(c.fields):len(c.fields)], f...)
	return c
}

func (c logCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) && !expected(e.Message) {
		return ce.AddCore(e, c)
	}
	return ce
}

// expected tells what every start on a new directory, or of one member, or
// every stop says, and what is told again.
func expected(message string) bool {
	return strings.Contains(message, "Failed to detect schema version") ||
		strings.Contains(message, "failed to update storage version") ||
		strings.Contains(message, "Running http and grpc server on single port") ||
		strings.Contains(message, "cannot campaign at term") || // electSelf, until it can
		strings.Contains(message, "setting up serving from embedded etcd failed") ||
		strings.Contains(message, "simple token is not cryptographically signed") ||
		strings.HasPrefix(message, "rejecting promote learner: learner is not ready") || // Vote, until it is
		strings.HasPrefix(message, "prober detected unhealthy status") || // beside what tells the reason
		// bbolt tells a failed write three times, then etcd tells it.
		strings.HasPrefix(message, "writeAt failed") ||
		strings.HasPrefix(message, "writing data failed") ||
		strings.HasPrefix(message, "Committing transaction failed")
}

func (c logCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range append(c.fields[:len(c.fields):len(c.fields)], fields...) {
		f.AddTo(enc)
	}
	// What is above an error ends the process.
	if e.Level > zapcore.ErrorLevel || c.seen.First(e.Level.String()+process.WithoutDigits(e.Message), e) {
		c.send(e, enc.Fields)
	}
	return nil
}

func (c logCore) send(e zapcore.Entry, fields map[string]any) {
	attrs := make([]slog.Attr, 0, len(fields)+1)
	attrs = append(attrs, slog.String("from", "etcd"))
	for _, k := range slices.Sorted(maps.Keys(fields)) {
		attrs = append(attrs, slog.Any(k, fields[k]))
	}
	if failure, _ := fields["error"].(string); strings.Contains(failure, "no space left on device") {
		attrs = append(attrs, slog.String("remedy", "the disk is full: free some space; nothing that was acknowledged is lost, and the coordinator starts again by itself"))
	}
	level := slog.LevelWarn
	if e.Level > zapcore.WarnLevel {
		level = slog.LevelError
	}
	c.log.LogAttrs(context.Background(), level, e.Message, attrs...)
}

// Sync tells what was counted so far.
func (c logCore) Sync() error {
	c.seen.Flush()
	return nil
}
