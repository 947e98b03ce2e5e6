package audit

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"

	"gopkg.in/natefinch/lumberjack.v2"

	"github.com/shoal-project/shoal/coordinator/config"
)

// openLog opens the log for its owner alone: names of objects and users are
// nobody else's business.
func openLog(path string, c config.Audit) (io.Writer, error) {
	if path == "-" {
		return os.Stdout, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make the log's directory: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	if c.AuditLogMaxSize == 0 {
		return f, nil
	}
	// The rotating writer opens it itself, and would make it for all to read.
	if err := f.Close(); err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	return &lumberjack.Logger{
		Filename:   path,
		MaxSize:    c.AuditLogMaxSize,
		MaxBackups: c.AuditLogMaxBackup,
		MaxAge:     c.AuditLogMaxAge,
		Compress:   c.AuditLogCompress,
	}, nil
}

// reporter says once that the log cannot be written, and once that it can again.
type reporter struct {
	to     io.Writer
	path   string
	log    *slog.Logger
	failed atomic.Bool
	lost   atomic.Int64
	// cut: the last line written has no end.
	cut atomic.Bool
}

func (r *reporter) Write(p []byte) (int, error) {
	if r.cut.Load() { // or the next event would be lost with the cut one
		p = append([]byte("\n"), p...)
	}
	n, err := r.to.Write(p)
	if n > 0 {
		r.cut.Store(n < len(p))
	}
	switch {
	case err != nil:
		r.lost.Add(1)
		if r.failed.CompareAndSwap(false, true) {
			r.log.Error(
				"the audit log cannot be written, requests are answered unrecorded unless auditLogMode is blocking-strict",
				"path", r.path, "err", err)
		}
	case r.failed.CompareAndSwap(true, false):
		r.log.Warn("the audit log is written again", "path", r.path, "lost", r.lost.Swap(0))
	}
	return n, err
}
