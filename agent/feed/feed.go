package feed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// Beat is how often a coordinator says something, if only that nothing changed; silence how
// long it may say nothing.
const (
	Beat    = 30 * time.Second
	silence = 3 * Beat
)

// errEnded: a stream ends from time to time, as a watch does.
var errEnded = errors.New("the coordinator ended the stream")

// Reader reads lines.
type Reader[T any] struct {
	lines  *bufio.Scanner
	most   int
	decode func(line []byte) (*T, error)
}

// NewReader reads lines of up to most bytes from r.
func NewReader[T any](r io.Reader, most int, decode func(line []byte) (*T, error)) *Reader[T] {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, min(64<<10, most)), most)
	return &Reader[T]{s, most, decode}
}

// Read returns the next line; io.EOF after the last.
func (r *Reader[T]) Read() (*T, error) {
	if !r.lines.Scan() {
		err := r.lines.Err()
		if err == nil {
			return nil, io.EOF
		}
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("a line is longer than %d bytes", r.most)
		}
		return nil, err
	}
	return r.decode(r.lines.Bytes())
}

// Source is a stream that is followed.
type Source[T any] struct {
	Open func(context.Context) (io.ReadCloser, error)
	// Reader reads it.
	Reader func(io.Reader) *Reader[T]
	// Hear takes a line; an error ends the stream. first is the first line of one.
	Hear func(ctx context.Context, line *T, first bool) error
	// Least and Most are the pauses after failures.
	Least, Most time.Duration
	// Failed hears of each failure; true has the longest pause follow. nil: nobody cares.
	Failed func(error) bool
	// Tell tells people, once until it goes well again, of failures that do not pass soon.
	Tell func(error)
}

// passing is how long failures are not told of: a coordinator that starts has no address
// for some time, and then no roles yet.
const passing = 5 * time.Second

// Follow hears the stream until ctx ends.
func Follow[T any](ctx context.Context, s Source[T]) {
	delay, told := time.Duration(0), false
	var since time.Time // it fails; zero: it does not
	for ctx.Err() == nil {
		began := time.Now()
		err := s.hear(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > s.Most {
			delay, told, since = 0, false, time.Time{}
			if errors.Is(err, errEnded) {
				continue
			}
		}
		if s.Failed != nil && s.Failed(err) {
			delay = s.Most
		}
		if since.IsZero() {
			since = time.Now()
		}
		if !told && time.Since(since) > passing {
			told = true
			s.Tell(err)
		}
		delay = min(max(2*delay, s.Least), s.Most)
		select {
		case <-ctx.Done():
		case <-time.After(delay):
		}
	}
}

// hear reads one stream to its end.
func (s *Source[T]) hear(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.Open(ctx)
	if err != nil {
		return err
	}
	defer stream.Close()
	quiet := time.AfterFunc(silence, cancel)
	defer quiet.Stop()
	r := s.Reader(stream)
	for first := true; ; first = false {
		line, err := r.Read()
		if errors.Is(err, io.EOF) {
			return errEnded
		}
		if err != nil {
			return err
		}
		quiet.Reset(silence)
		if err := s.Hear(ctx, line, first); err != nil {
			return err
		}
	}
}
