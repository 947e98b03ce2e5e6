package feed

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.Check(m) }

func text(line []byte) (*string, error) {
	s := string(line)
	if s == "bad" {
		return nil, errors.New("bad line")
	}
	return &s, nil
}

func reader(r io.Reader) *Reader[string] { return NewReader(r, 8, text) }

func TestReader(t *testing.T) {
	for said, want := range map[string]error{
		"a\nb\n":          io.EOF,
		"a\nbad\n":        errors.New("bad line"),
		"a\n123456789\nb": errors.New("a line is longer than 8 bytes"),
	} {
		r := reader(strings.NewReader(said))
		if got, err := r.Read(); err != nil || *got != "a" {
			t.Errorf("%q: %v", said, err)
		}
		err := error(nil)
		for err == nil {
			_, err = r.Read()
		}
		if err.Error() != want.Error() {
			t.Errorf("%q ends with %v, want %v", said, err, want)
		}
	}
}

// silent is a stream that says one line, and nothing more until it is closed.
type silent struct {
	io.Reader
	ctx context.Context
}

func (s silent) Read(b []byte) (int, error) {
	if n, err := s.Reader.Read(b); err == nil {
		return n, nil
	}
	<-s.ctx.Done()
	return 0, s.ctx.Err()
}
func (silent) Close() error { return nil }

// A stream that fails is tried again after pauses that grow, and told of once if that does not
// pass soon; one that falls silent ends; one that was long is opened again at once.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		var opened []time.Duration
		var told []time.Duration
		heard := 0
		Follow(ctx, Source[string]{
			Open: func(ctx context.Context) (io.ReadCloser, error) {
				opened = append(opened, time.Since(began))
				switch len(opened) {
				case 1, 2, 3, 4, 5:
					return nil, errors.New("not in reach")
				case 6:
					return silent{strings.NewReader("a\n"), ctx}, nil
				}
				cancel()
				return nil, errors.New("over")
			},
			Reader: reader,
			Hear: func(_ context.Context, line *string, first bool) error {
				if *line != "a" || !first {
					t.Errorf("heard %q, first: %v", *line, first)
				}
				heard++
				return nil
			},
			Least: time.Second, Most: 3 * time.Second,
			Tell: func(error) { told = append(told, time.Since(began)) },
		})
		want := []time.Duration{0, time.Second, 3 * time.Second, 6 * time.Second, 9 * time.Second,
			12 * time.Second, 12*time.Second + silence + time.Second}
		for i, d := range want {
			if opened[i] != d {
				t.Errorf("opened after %v, want %v", opened, want)
				break
			}
		}
		if heard != 1 || len(told) != 1 || told[0] != 6*time.Second {
			t.Errorf("heard %d lines, told after %v", heard, told)
		}
	})
}
