package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/opencontainers/go-digest"
)

// transit is the store of blobs, with a view of those that are being written: other
// nodes get a layer while this one gets it.
type transit struct {
	content.Store
	dir string

	mu     sync.Mutex
	coming map[digest.Digest]*coming
}

func newTransit(next content.Store, dir string) *transit {
	return &transit{Store: next, dir: dir, coming: map[digest.Digest]*coming{}}
}

// coming is a blob of which the beginning is there.
type coming struct {
	path string // of the file, which keeps its bytes when it gets its last name

	mu    sync.Mutex
	n     int64
	ended bool
	err   error
	grown chan struct{} // closed when n or ended is another; nil: nobody waits
}

var errCutOff = errors.New("the layer is not coming in any more")

// Writer implements content.Ingester. The library's name for what is written ends with
// the digest that is expected of it.
func (t *transit) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	w, err := t.Store.Writer(ctx, opts...)
	if err != nil {
		return nil, err
	}
	var o content.WriterOpts
	for _, opt := range opts {
		if opt(&o) != nil {
			return w, nil
		}
	}
	i := strings.LastIndex(o.Ref, "sha256:")
	if i < 0 {
		return w, nil
	}
	name, err := digest.Parse(o.Ref[i:])
	if err != nil {
		return w, nil
	}
	status, err := w.Status()
	if err != nil {
		return w, nil
	}
	c := &coming{path: filepath.Join(t.dir, "ingest", digest.FromString(o.Ref).Encoded(), "data"), n: status.Offset}
	t.mu.Lock()
	t.coming[name] = c
	t.mu.Unlock()
	return &watched{Writer: w, c: c, end: func() { t.forget(name, c) }}, nil
}

// WalkStatusRefs hands on what the library looks for in a store of blobs.
func (t *transit) WalkStatusRefs(ctx context.Context, f func(string) error) error {
	if w, ok := t.Store.(interface {
		WalkStatusRefs(context.Context, func(string) error) error
	}); ok {
		return w.WalkStatusRefs(ctx, f)
	}
	list, err := t.Store.ListStatuses(ctx)
	for _, s := range list {
		err = errors.Join(err, f(s.Ref))
	}
	return err
}

func (t *transit) forget(name digest.Digest, c *coming) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.coming[name] == c {
		delete(t.coming, name)
	}
}

// size is how many bytes of a blob that is being written are there.
func (t *transit) size(name digest.Digest) int64 {
	t.mu.Lock()
	c := t.coming[name]
	t.mu.Unlock()
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// open opens what is there of a blob that is being written; nil: it is not.
func (t *transit) open(name digest.Digest) *part {
	t.mu.Lock()
	c := t.coming[name]
	t.mu.Unlock()
	if c == nil {
		return nil
	}
	f, err := os.Open(c.path)
	if err != nil {
		return nil // it has its last name by now
	}
	return &part{File: f, c: c}
}

// part implements peer.Layer.
type part struct {
	*os.File
	c *coming
}

func (p *part) Grown(ctx context.Context, n int64) (int64, error) {
	for {
		there, more, err := p.c.look(n)
		if more == nil {
			return there, err
		}
		select {
		case <-more:
		case <-ctx.Done():
			return there, ctx.Err()
		}
	}
}

// look tells how much is there, or what to wait for when it is not more than n.
func (c *coming) look(n int64) (there int64, more <-chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n > n || c.ended {
		if c.n <= n {
			return c.n, nil, errors.Join(errCutOff, c.err)
		}
		return c.n, nil, nil
	}
	if c.grown == nil {
		c.grown = make(chan struct{})
	}
	return c.n, c.grown, nil
}

func (c *coming) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	if c.grown != nil {
		close(c.grown)
		c.grown = nil
	}
}

// watched is a writer of which readers are told.
type watched struct {
	content.Writer
	c   *coming
	end func()
}

func (w *watched) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	w.c.change(func() { w.c.n += int64(n) })
	return n, err
}

// Truncate begins anew: what readers had may have been something else.
func (w *watched) Truncate(size int64) error {
	w.finish(errCutOff)
	return w.Writer.Truncate(size)
}

func (w *watched) Commit(ctx context.Context, size int64, expected digest.Digest, opts ...content.Opt) error {
	err := w.Writer.Commit(ctx, size, expected, opts...)
	w.finish(err)
	return err
}

func (w *watched) Close() error {
	w.finish(errCutOff)
	return w.Writer.Close()
}

func (w *watched) finish(err error) {
	w.c.change(func() {
		if !w.c.ended {
			w.c.ended, w.c.err = true, err
		}
	})
	w.end()
}
