// Package follow takes changes of a configuration file over while the server runs.
package follow

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"time"
)

// ErrLater is in an error of Take when the same content may do later.
var ErrLater = errors.New("it is tried again")

// File is a configuration that is followed.
type File struct {
	Path string
	// What it configures, for the log.
	What string
	// Seen is the content that is in use.
	Seen []byte
	// Take uses other content, or changes nothing and says why.
	Take func(data []byte) error
	Log  *slog.Logger
}

// Run looks at the file every so often until ctx ends. Content that cannot be
// used, and a file that cannot be read, is told once.
func (f File) Run(ctx context.Context, every time.Duration) {
	told := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
		}
		data, err := os.ReadFile(f.Path)
		problem := string(data)
		switch {
		case err != nil:
			problem = err.Error()
		case bytes.Equal(data, f.Seen):
			told = ""
			continue
		default:
			if err = f.Take(data); !errors.Is(err, ErrLater) {
				f.Seen = data
			}
		}
		switch {
		case err == nil:
			told = ""
			f.Log.Info("the changed "+f.What+" is used", "file", f.Path)
		case problem != told:
			f.Log.Error("the changed "+f.What+" is not used", "file", f.Path, "err", err)
			told = problem
		}
	}
}
