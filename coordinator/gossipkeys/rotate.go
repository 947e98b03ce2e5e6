package gossipkeys

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/agent/gossip"
)

// Settle is longer than a coordinator takes to see that its key file has changed.
const Settle = 12 * time.Second

// Nodes are the cluster's.
type Nodes interface {
	Names(ctx context.Context) ([]string, error)
	// Give has the agent of a node use a key file. It returns the prints of the keys
	// that it uses then; none when it takes no part in the gossip.
	Give(ctx context.Context, node string, file []byte) ([]string, error)
}

// Rotation changes the key of all members.
type Rotation struct {
	File   string // the coordinator's
	Nodes  Nodes
	Settle time.Duration
	Out    io.Writer
	// Spread has all coordinators, this one among them, have other content in the place
	// of the file's.
	Spread func(ctx context.Context, old, data []byte) error
}

// steps of a rotation, as the key file's comment has them.
const (
	added    = "added"
	promoted = "promoted"
	dropping = "dropping"
)

const mark = "# shoal gossip rotate: "

// state is what a key file says.
type state struct {
	step string // "" when no rotation is under way
	keys []string
}

func (s state) file() []byte {
	var b strings.Builder
	if s.step != "" {
		b.WriteString(mark + s.step + "\n")
	}
	for _, k := range s.keys {
		b.WriteString(k + "\n")
	}
	return []byte(b.String())
}

func parse(file []byte) (state, error) {
	var s state
	for line := range strings.Lines(string(file)) {
		line = strings.TrimSpace(line)
		if step, ok := strings.CutPrefix(line, mark); ok {
			s.step = step
		} else if line != "" && !strings.HasPrefix(line, "#") {
			s.keys = append(s.keys, line)
		}
	}
	want, known := map[string]int{"": 1, added: 2, promoted: 2, dropping: 1}[s.step]
	switch {
	case !known:
		return s, fmt.Errorf("its comment tells of an unknown step, %q", s.step)
	case len(s.keys) != want && s.step == "":
		return s, fmt.Errorf("it has %d keys: end the rotation that was begun by hand, so that one is left",
			len(s.keys))
	case len(s.keys) != want:
		return s, fmt.Errorf("it has %d keys, and its comment says %q: put back the file of another member",
			len(s.keys), s.step)
	}
	_, err := gossip.Prints(file)
	return s, err
}

// Run makes a new key, has all members use it, and drops the old one. Interrupted
// anywhere, the next Run goes on from there.
func (r Rotation) Run(ctx context.Context) error {
	unlock, err := r.lock()
	if err != nil {
		return err
	}
	defer unlock()
	s, err := r.read()
	if err != nil {
		return err
	}
	if s.step == "" {
		raw := make([]byte, 32)
		if _, err := rand.Read(raw); err != nil {
			return fmt.Errorf("make gossip key: %w", err)
		}
		s = state{added, append(s.keys, base64.StdEncoding.EncodeToString(raw))}
		if err := r.write(ctx, s); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(r.Out, "going on with the rotation that %s shows\n", r.File)
	}
	for s.step != "" {
		if err := r.spread(ctx, s); err != nil {
			return err
		}
		switch s.step {
		case added:
			s = state{promoted, []string{s.keys[1], s.keys[0]}}
		case promoted:
			s = state{dropping, s.keys[:1]}
		case dropping:
			s.step = ""
		}
		if err := r.write(ctx, s); err != nil {
			return err
		}
	}
	fmt.Fprintln(r.Out, "the new key is the only one")
	return nil
}

// spread returns when every member uses the keys of a step.
func (r Rotation) spread(ctx context.Context, s state) error {
	file := s.file() // with its comment: the agent beside the coordinator may have the same one
	want, err := gossip.Prints(file)
	if err != nil {
		return err
	}
	nodes, err := r.Nodes.Names(ctx)
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	var errs []error
	without := 0
	for _, node := range nodes {
		have, err := r.Nodes.Give(ctx, node, file)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("node %s: %w", node, err))
		case len(have) == 0:
			without++
		case !slices.Equal(have, want):
			errs = append(errs, fmt.Errorf("node %s: it uses other keys than it was given", node))
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf(
			"rotate gossip keys: %d of %d nodes have not got them (step %q): run it again when they are there, or have deleted their Nodes; all members understand each other meanwhile:\n%w",
			len(errs), len(nodes), s.step, errors.Join(errs...))
	}
	fmt.Fprintf(r.Out, "%s: %d nodes\n", s.step, len(nodes)-without)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(r.Settle):
		return nil
	}
}

func (r Rotation) read() (state, error) {
	data, err := os.ReadFile(r.File)
	if err != nil {
		return state{}, fmt.Errorf("rotate gossip keys: %w", err)
	}
	s, err := parse(data)
	if err != nil {
		return s, fmt.Errorf("rotate gossip keys: %s: %w", r.File, err)
	}
	return s, nil
}

func (r Rotation) write(ctx context.Context, s state) error {
	old, err := os.ReadFile(r.File)
	if err != nil {
		return fmt.Errorf("rotate gossip keys: %w", err)
	}
	return r.Spread(ctx, old, s.file())
}

// lock keeps a second rotation away while this process lives.
func (r Rotation) lock() (unlock func(), err error) {
	dir, err := os.Open(filepath.Dir(r.File))
	if err != nil {
		return nil, fmt.Errorf("rotate gossip keys: %w", err)
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = dir.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errors.New("another rotation of keys runs")
		}
		return nil, fmt.Errorf("rotate gossip keys: %w", err)
	}
	return func() { _ = dir.Close() }, nil
}
