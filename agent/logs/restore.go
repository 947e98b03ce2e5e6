package logs

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/shoal-project/shoal/agent/beneath"
)

// isFile tells whether a regular file is at path. It is a hint: the path may be anything the
// next moment.
func isFile(path string) bool {
	st, err := os.Lstat(path)
	return err == nil && st.Mode().IsRegular()
}

// restore gives a log its name back that somebody renamed or removed, while its monitor writes
// on. What was put in its place goes: nobody could read the log, and a monitor that begins it
// anew would end at it, and the container with it.
func (r *Rotator) restore(ctx context.Context, d *beneath.Dir, w Written) {
	name := filepath.Base(w.Path)
	if err := d.Root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.Log.Warn("something else is where a container log belongs, and cannot be removed", "log", w.Path, "err", err)
		return
	}
	if regular(d, heldName(name)) != nil {
		if err := d.Root.Link(heldName(name), name); err == nil {
			r.Log.Warn("somebody took a container log away: it has its name again", "log", w.Path)
			return
		}
	}
	r.reopen(ctx, w)
}

// reopen has a monitor begin another log where there is none any more, or not even its
// directory.
func (r *Rotator) reopen(ctx context.Context, w Written) {
	if err := r.Reopen(ctx, w.ID); err != nil {
		r.Log.Warn("somebody took a container log away, and it cannot be opened anew", "log", w.Path, "err", err)
		return
	}
	r.Log.Warn("somebody took a container log away: another is begun", "log", w.Path)
}
