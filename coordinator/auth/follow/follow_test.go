package follow

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestFile: each change is taken once, what cannot be used is told once, and what
// may do later is tried again.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // over taken and log, which the follower writes
		var log bytes.Buffer
		var taken []string
		f := File{Path: path, What: "configuration", Seen: []byte("a"),
			Log: slog.New(slog.NewTextHandler(locked{&mu, &log}, nil)), Take: func(data []byte) error {
				mu.Lock()
				defer mu.Unlock()
				taken = append(taken, string(data))
				switch string(data) {
				case "bad":
					return errors.New("it is bad")
				case "later":
					return fmt.Errorf("try %d: %w", len(taken), ErrLater)
				}
				return nil
			}}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go f.Run(ctx, time.Second)
		for _, step := range []struct {
			content string // "": there is no file
			taken   string
			told    int // lines of the log
		}{
			{"", "", 1},
			{"a", "", 0},
			{"", "", 1},
			{"bad", "bad", 1},
			{"b", "b", 1},
			{"later", "later,later,later", 1},
			{"b", "", 0},
			{"a", "a", 1},
		} {
			mu.Lock()
			taken = nil
			log.Reset()
			mu.Unlock()
			err := os.Remove(path)
			if step.content != "" {
				err = os.WriteFile(path, []byte(step.content), 0o600)
			}
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
			time.Sleep(3*time.Second + time.Millisecond)
			synctest.Wait()
			mu.Lock()
			if got := strings.Join(taken, ","); got != step.taken || strings.Count(log.String(), "\n") != step.told {
				t.Errorf("%q: taken %q, told %q", step.content, got, log.String())
			}
			mu.Unlock()
		}
	})
}

// locked is a writer for two goroutines.
type locked struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}
