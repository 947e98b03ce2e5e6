package gossip

import (
	"bytes"
	"context"
	"log"
	"log/slog"
	"sync"
	"time"
)

// quietFor is how long the same kind of trouble is not told again.
const quietFor = 5 * time.Minute

// lineWriter turns memberlist's lines, "[WARN] memberlist: text", into slog
// records. Its warnings are about single packets and go to debug; its errors
// are told once per kind and quietFor.
type lineWriter struct {
	log *slog.Logger

	mu   sync.Mutex
	told map[string]time.Time
}

func newLogger(l *slog.Logger) *log.Logger {
	return log.New(&lineWriter{log: l, told: map[string]time.Time{}}, "", 0)
}

func (w *lineWriter) Write(p []byte) (int, error) {
	line := bytes.TrimSpace(p)
	level := slog.LevelDebug
	if rest, ok := bytes.CutPrefix(line, []byte("[ERR] ")); ok && w.first(rest, time.Now()) {
		level = slog.LevelWarn
	}
	if w.log.Enabled(context.Background(), level) {
		if i := bytes.Index(line, []byte("memberlist: ")); i >= 0 {
			line = line[i+len("memberlist: "):]
		}
		w.log.Log(context.Background(), level, "gossip transport", "text", string(line))
	}
	return len(p), nil
}

// first tells whether this kind of line (its beginning up to the first digit)
// was not told lately.
func (w *lineWriter) first(line []byte, now time.Time) bool {
	if i := bytes.IndexAny(line, "0123456789"); i >= 0 {
		line = line[:i]
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if at, ok := w.told[string(line)]; ok && now.Sub(at) < quietFor {
		return false
	}
	if len(w.told) > 100 {
		clear(w.told)
	}
	w.told[string(line)] = now
	return true
}
