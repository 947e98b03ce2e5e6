package logs

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/agent/beneath"
)

// follower waits for a file to grow.
type follower struct {
	w      *fsnotify.Watcher // nil where the kernel gives no more of them
	events <-chan fsnotify.Event
	errs   <-chan error
}

// newFollower watches a log's directory. A user of the node has few watchers
// (inotify(7), max_user_instances, is 128), which those who follow logs in one
// namespace could use up: the others look for themselves.
func newFollower(file File) (*follower, error) {
	name, err := filepath.Rel(file.Dir, filepath.Dir(file.Path))
	if err != nil {
		return nil, err
	}
	d, err := beneath.Open(file.Dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	dir, err := d.OpenDir(name, beneath.NoLinks)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	w, err := fsnotify.NewWatcher()
	if err == nil {
		if err = w.Add(fmt.Sprintf("/proc/self/fd/%d", dir.Fd())); err != nil {
			err = errors.Join(err, w.Close())
		}
	}
	switch {
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENOSPC):
		return &follower{}, nil
	case err != nil:
		return nil, err
	}
	return &follower{w: w, events: w.Events, errs: w.Errors}, nil
}

func (f *follower) close() {
	if f.w != nil {
		f.w.Close()
	}
}

// endCheck is how often a quiet log's container is asked whether it ended: the
// end of a container is no event of its log file.
const endCheck = 500 * time.Millisecond

func (f *follower) next(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-f.events:
	case err := <-f.errs:
		return err
	case <-time.After(endCheck):
	}
	return nil
}
