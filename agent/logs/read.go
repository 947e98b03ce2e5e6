package logs

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/shoal-project/shoal/agent/beneath"
)

// Options are those of the API's PodLogOptions that a log is read by.
type Options struct {
	Follow, Timestamps bool
	Stdout, Stderr     bool
	Tail               int64 // lines, -1 for all
	Since              time.Time
}

// ErrFull says that an output has taken all that it may.
var ErrFull = errors.New("the byte limit is reached")

// Output takes what is read of a log.
type Output struct {
	W io.Writer
	// Flush, if set, sends at once what was written; called when nothing more is
	// at hand.
	Flush func()
	// Limit is how many bytes more it takes, -1 for all.
	Limit int64
}

// Write fails with ErrFull when the limit is reached.
func (o *Output) Write(b []byte) (int, error) {
	if o.Limit >= 0 {
		if o.Limit == 0 {
			return 0, ErrFull
		}
		if int64(len(b)) > o.Limit {
			b = b[:o.Limit]
		}
		o.Limit -= int64(len(b))
	}
	return o.W.Write(b)
}

func (o *Output) flush() {
	if o.Flush != nil {
		o.Flush()
	}
}

// File is a container's log. Pods that mount the directory of logs may put
// links, FIFOs and lines without end there: none is followed, waited for or
// kept in memory.
type File struct {
	Dir  string // of all logs
	Path string
}

func (f File) open() (*os.File, error) { return beneath.OpenBelow(f.Dir, f.Path) }

// maxLine bounds a line. Container runtimes split at 16 KiB or less.
const maxLine = 1 << 20

var errLongLine = fmt.Errorf("a line has more than %d bytes", maxLine)

// Read copies a container's log, in the CRI's format, as the options say.
// Following crosses rotations and ends when ended says so and all is read.
func Read(ctx context.Context, file File, o Options, out *Output, ended func() bool) error {
	f, err := file.open()
	if err != nil {
		return err
	}
	defer func() { f.Close() }()
	if o.Tail >= 0 {
		pos, err := tailPosition(f, o.Tail)
		if err != nil {
			return err
		}
		if _, err := f.Seek(pos, io.SeekStart); err != nil {
			return err
		}
	}
	var wait *follower
	if o.Follow {
		if wait, err = newFollower(file); err != nil {
			return err
		}
		defer wait.close()
	}
	r := bufio.NewReaderSize(f, 64<<10)
	lines := &lineWriter{out: out, options: o}
	var rest []byte
	var next *os.File // what the name stands for after a rotation
	defer func() {
		if next != nil {
			next.Close()
		}
	}()
	last := false
	for {
		part, err := r.ReadSlice('\n')
		if rest = append(rest, part...); len(rest) > maxLine {
			return errLongLine
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err == nil {
			if err := lines.write(rest); err != nil {
				return err
			}
			rest = rest[:0]
			continue
		}
		if !errors.Is(err, io.EOF) {
			return err
		}
		out.flush()
		if !o.Follow {
			return nil
		}
		if next != nil {
			f.Close()
			f, next, rest = next, nil, nil
			r.Reset(f)
			continue
		}
		if next = successor(f, file); next != nil {
			continue // read what came before the monitor opened the new one
		}
		if last {
			return nil
		}
		if last = ended(); last {
			continue // read what came before the end was seen
		}
		if err := wait.next(ctx); err != nil {
			return nil
		}
	}
}

// successor returns the log that was begun after the open one, nil as long as that is
// written.
func successor(f *os.File, file File) *os.File {
	now, err := file.open()
	if err != nil {
		return nil
	}
	was, err1 := f.Stat()
	is, err2 := now.Stat()
	if errors.Join(err1, err2) != nil || os.SameFile(was, is) {
		now.Close()
		return nil
	}
	if older := between(was, is, file); older != nil {
		now.Close()
		return older
	}
	return now
}

// between returns the first that came between two logs, by when they were written last: a
// log can be begun anew more often than it is read. nil: there is none.
func between(was, is fs.FileInfo, file File) *os.File {
	d, err := beneath.Open(file.Dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	name, err := filepath.Rel(file.Dir, file.Path)
	if err != nil {
		return nil
	}
	dir, base := filepath.Split(name)
	names, err := d.Names(dir)
	if err != nil {
		return nil
	}
	var first *os.File
	var at time.Time
	for _, n := range names {
		if n != heldName(base) && !isRotated(n, base) {
			continue
		}
		f, err := d.OpenFile(filepath.Join(dir, n), os.O_RDONLY, beneath.NoLinks)
		if err != nil {
			continue
		}
		st, err := f.Stat()
		if err != nil || os.SameFile(st, was) || os.SameFile(st, is) || !st.ModTime().After(was.ModTime()) ||
			first != nil && !st.ModTime().Before(at) {
			f.Close()
			continue
		}
		if first != nil {
			first.Close()
		}
		first, at = f, st.ModTime()
	}
	return first
}

// lineWriter writes of a log's lines what the options want.
type lineWriter struct {
	out     io.Writer
	options Options
	// within: what was written last was a part of a line, which goes on.
	within bool
}

func (w *lineWriter) write(text []byte) error {
	l, ok := parse(text)
	if !ok {
		return nil // not ours
	}
	if !w.options.Since.IsZero() {
		t, err := time.Parse(time.RFC3339Nano, string(l.time))
		if err == nil && t.Before(w.options.Since) {
			return nil
		}
	}
	if string(l.stream) == "stdout" && !w.options.Stdout || string(l.stream) == "stderr" && !w.options.Stderr {
		return nil
	}
	if l.partial {
		l.text = bytes.TrimSuffix(l.text, []byte("\n"))
	}
	begins := !w.within
	w.within = l.partial
	if w.options.Timestamps && begins {
		if _, err := w.out.Write(append(stamp(l.time), ' ')); err != nil {
			return err
		}
	}
	_, err := w.out.Write(l.text)
	return err
}

// fixedNano is how the kubelet shows times of lines.
const fixedNano = "2006-01-02T15:04:05.000000000Z07:00"

// stamp is a line's time as the kubelet shows it: monitors write "+00:00" where that has "Z".
func stamp(written []byte) []byte {
	t, err := time.Parse(time.RFC3339Nano, string(written))
	if err != nil {
		return slices.Clone(written)
	}
	return t.AppendFormat(nil, fixedNano)
}

// tailPosition is where the last n lines of a file begin.
func tailPosition(f *os.File, n int64) (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	pos := st.Size()
	if n == 0 {
		return pos, nil
	}
	buf := make([]byte, 16<<10)
	seen := int64(-1) // the last line's own end does not count
	line := 0
	for pos > 0 {
		size := min(int64(len(buf)), pos)
		pos -= size
		if _, err := f.ReadAt(buf[:size], pos); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		for i := size - 1; i >= 0; i-- {
			if line++; line > maxLine {
				return 0, errLongLine
			}
			if buf[i] == '\n' {
				line = 0
				if seen++; seen == n {
					return pos + i + 1, nil
				}
			}
		}
	}
	return 0, nil
}
