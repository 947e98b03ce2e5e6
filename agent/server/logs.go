package server

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/agent/beneath"
	"github.com/shoal-project/shoal/agent/record"
)

// logOptions are those of the API's PodLogOptions.
type logOptions struct {
	follow, previous, timestamps bool
	stdout, stderr               bool
	tail                         int64 // lines, -1 for all
	limit                        int64 // bytes, -1 for all
	since                        time.Time
}

// maxSince is longer ago, in seconds, than any log; a time.Duration holds it.
const maxSince = 100 * 365 * 24 * 3600

func parseLogOptions(q url.Values, now time.Time) (logOptions, error) {
	o := logOptions{tail: -1, limit: -1, stdout: true, stderr: true}
	var errs []error
	flag := func(name string) bool {
		v := q.Get(name)
		if v == "" {
			return false
		}
		b, err := strconv.ParseBool(v)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %q is not a boolean", name, v))
		}
		return b
	}
	number := func(name string) int64 {
		v := q.Get(name)
		if v == "" || v == "all" {
			return -1
		}
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n < 0 {
			errs = append(errs, fmt.Errorf("%s: %q is not a number", name, v))
		}
		return n
	}
	o.follow, o.previous, o.timestamps = flag("follow"), flag("previous"), flag("timestamps")
	o.tail, o.limit = number("tailLines"), number("limitBytes")
	if n := number("sinceSeconds"); n >= 0 {
		o.since = now.Add(-time.Duration(min(n, maxSince)) * time.Second)
	}
	if v := q.Get("sinceTime"); v != "" {
		t, err := time.Parse(time.RFC3339, v)
		if err != nil {
			errs = append(errs, fmt.Errorf("sinceTime: %w", err))
		}
		o.since = t
	}
	switch q.Get("stream") {
	case "Stdout":
		o.stderr = false
	case "Stderr":
		o.stdout = false
	}
	return o, errors.Join(errs...)
}

func (s *Server) containerLogs(w http.ResponseWriter, r *http.Request) {
	opts, err := parseLogOptions(r.URL.Query(), time.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ns, name, container := r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container")
	p, ok := s.Pods.Find(ns, name)
	if !ok {
		http.Error(w, fmt.Sprintf("pod %q does not exist", ns+"/"+name), http.StatusNotFound)
		return
	}
	o, problem := chosen(&p, container, opts.previous)
	if problem != "" {
		http.Error(w, problem, http.StatusBadRequest)
		return
	}
	out := &flushing{w: w, limit: opts.limit}
	out.flusher, _ = w.(http.Flusher)
	w.Header().Set("Content-Type", "text/plain")
	ended := func() bool {
		now, ok := s.Pods.Find(ns, name)
		if !ok || now.Pod.UID != p.Pod.UID {
			return true
		}
		for i := range now.Observed.Containers {
			if c := &now.Observed.Containers[i]; c.ID == o.ID {
				return c.State != record.Running
			}
		}
		return true
	}
	if err := readLog(r.Context(), logFile{dir: s.LogsDir, path: o.LogPath}, opts, out, ended); err != nil && !errors.Is(err, errFull) && r.Context().Err() == nil {
		fmt.Fprintf(out, "failed to read the log: %v\n", err)
	}
	out.flush()
}

// chosen picks the run of a container whose log is wanted, or says why there
// is none.
func chosen(p *Pod, container string, previous bool) (*record.Observation, string) {
	var runs []*record.Observation
	for i := range p.Observed.Containers {
		if o := &p.Observed.Containers[i]; o.Name == container {
			runs = append(runs, o)
		}
	}
	pod := p.Pod.Name
	if previous {
		// The run before the one that runs or ended last.
		if len(runs) < 2 {
			return nil, fmt.Sprintf("previous terminated container %q in pod %q not found", container, pod)
		}
		return runs[1], ""
	}
	if len(runs) > 0 {
		return runs[0], ""
	}
	for i := range p.Pod.Status.ContainerStatuses {
		if st := &p.Pod.Status.ContainerStatuses[i]; st.Name == container && st.State.Waiting != nil {
			if st.State.Waiting.Reason == "ErrImagePull" || st.State.Waiting.Reason == "ImagePullBackOff" {
				return nil, fmt.Sprintf("container %q in pod %q is waiting to start: trying and failing to pull image", container, pod)
			}
			return nil, fmt.Sprintf("container %q in pod %q is waiting to start: %s", container, pod, st.State.Waiting.Reason)
		}
	}
	return nil, fmt.Sprintf("container %q in pod %q is not available", container, pod)
}

var errFull = errors.New("the byte limit is reached")

// flushing sends at once what is written when nothing more is at hand.
type flushing struct {
	w       io.Writer
	flusher http.Flusher
	limit   int64
}

func (f *flushing) Write(b []byte) (int, error) {
	if f.limit >= 0 {
		if f.limit == 0 {
			return 0, errFull
		}
		if int64(len(b)) > f.limit {
			b = b[:f.limit]
		}
		f.limit -= int64(len(b))
	}
	return f.w.Write(b)
}

func (f *flushing) flush() {
	if f.flusher != nil {
		f.flusher.Flush()
	}
}

// logFile is a container's log. Pods that mount the directory of logs may put
// links, FIFOs and lines without end there: none is followed, waited for or
// kept in memory.
type logFile struct {
	dir  string // of all logs
	path string
}

func (l logFile) open() (*os.File, error) { return beneath.OpenBelow(l.dir, l.path) }

// maxLine bounds a line. Container runtimes split at 16 KiB or less.
const maxLine = 1 << 20

var errLongLine = fmt.Errorf("a line has more than %d bytes", maxLine)

// readLog copies a container's log, in the CRI's format, as the options say.
// Following crosses rotations and ends when ended says so and all is read.
func readLog(ctx context.Context, file logFile, o logOptions, out *flushing, ended func() bool) error {
	f, err := file.open()
	if err != nil {
		return err
	}
	defer func() { f.Close() }()
	if o.tail >= 0 {
		pos, err := tailPosition(f, o.tail)
		if err != nil {
			return err
		}
		if _, err := f.Seek(pos, io.SeekStart); err != nil {
			return err
		}
	}
	var wait *follower
	if o.follow {
		if wait, err = newFollower(file); err != nil {
			return err
		}
		defer wait.close()
	}
	r := bufio.NewReaderSize(f, 64<<10)
	var rest []byte
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
			if err := writeLine(out, rest, &o); err != nil {
				return err
			}
			rest = rest[:0]
			continue
		}
		if !errors.Is(err, io.EOF) {
			return err
		}
		out.flush()
		if !o.follow || last {
			return nil
		}
		if next := rotated(f, file); next != nil {
			f.Close()
			f, rest = next, nil
			r.Reset(f)
			continue
		}
		if last = ended(); last {
			continue // read what came before the end was seen
		}
		if err := wait.next(ctx); err != nil {
			return nil
		}
	}
}

// rotated returns the new file when the name no longer stands for the open one.
func rotated(f *os.File, file logFile) *os.File {
	next, err := file.open()
	if err != nil {
		return nil
	}
	was, err1 := f.Stat()
	is, err2 := next.Stat()
	if errors.Join(err1, err2) != nil || os.SameFile(was, is) {
		next.Close()
		return nil
	}
	return next
}

// writeLine writes one log line: "TIME STREAM TAG TEXT".
func writeLine(out io.Writer, line []byte, o *logOptions) error {
	stamp, rest, ok := bytes.Cut(line, []byte(" "))
	stream, rest, ok2 := bytes.Cut(rest, []byte(" "))
	tag, text, ok3 := bytes.Cut(rest, []byte(" "))
	if !ok || !ok2 || !ok3 {
		return nil // not ours
	}
	if !o.since.IsZero() {
		t, err := time.Parse(time.RFC3339Nano, string(stamp))
		if err == nil && t.Before(o.since) {
			return nil
		}
	}
	if string(stream) == "stdout" && !o.stdout || string(stream) == "stderr" && !o.stderr {
		return nil
	}
	if len(tag) > 0 && tag[0] == 'P' {
		text = bytes.TrimSuffix(text, []byte("\n")) // part of a longer line
	}
	if o.timestamps {
		if _, err := out.Write(append(append([]byte(nil), stamp...), ' ')); err != nil {
			return err
		}
	}
	_, err := out.Write(text)
	return err
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

// follower waits for a file to grow.
type follower struct {
	w      *fsnotify.Watcher // nil where the kernel gives no more of them
	events <-chan fsnotify.Event
	errs   <-chan error
}

// newFollower watches a log's directory. A user of the node has few watchers
// (inotify(7), max_user_instances, is 128), which those who follow logs in one
// namespace could use up: the others look for themselves.
func newFollower(file logFile) (*follower, error) {
	name, err := filepath.Rel(file.dir, filepath.Dir(file.path))
	if err != nil {
		return nil, err
	}
	d, err := beneath.Open(file.dir)
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
