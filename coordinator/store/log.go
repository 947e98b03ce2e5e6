package store

import (
	"context"
	"log/slog"
	"strings"

	"go.uber.org/zap/zapcore"
)

// logCore carries etcd's warnings and errors into slog.
type logCore struct {
	log    *slog.Logger
	fields []zapcore.Field
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
	attrs := make([]slog.Attr, 0, len(enc.Fields)+1)
	attrs = append(attrs, slog.String("from", "etcd"))
	for k, v := range enc.Fields {
		attrs = append(attrs, slog.Any(k, v))
	}
	if failure, _ := enc.Fields["error"].(string); strings.Contains(failure, "no space left on device") {
		attrs = append(attrs, slog.String("remedy", "the disk is full: free some space; nothing that was acknowledged is lost, and the coordinator starts again by itself"))
	}
	level := slog.LevelWarn
	if e.Level > zapcore.WarnLevel {
		level = slog.LevelError
	}
	c.log.LogAttrs(context.Background(), level, e.Message, attrs...)
	return nil
}

func (c logCore) Sync() error { return nil }
