package rotation

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/shoal-project/shoal/coordinator/store"
)

// Notes are what the coordinators tell each other of keys (store.Notes).
type Notes interface {
	All(ctx context.Context) (map[string]store.Note, error)
	Put(ctx context.Context, name string, data []byte, revision int64) error
	Delete(ctx context.Context, name string) error
	Follow(ctx context.Context, changed func()) error
}

const (
	setPrefix    = "set/"
	memberPrefix = "member/"
)

// record is the note of a set: the step that its files are in.
type record struct {
	Set        string    `json:"set"`
	Step       string    `json:"step"`
	Generation int64     `json:"generation"`
	Since      time.Time `json:"since"`
	Digest     string    `json:"digest"`
	Signatures [][]byte  `json:"signatures"`
	// Sealed are the files, by coordinator; Keys tell to which key of it.
	Sealed map[string][]byte `json:"sealed"`
	Keys   map[string]string `json:"keys"`

	revision int64
}

// text is what is signed of a record, and sealed with the files. No certificate and no
// grant begins like it.
func (r record) text() []byte {
	return fmt.Appendf(nil, "shoal keys v1\n%s\n%s\n%d\n%s\n%s\n", r.Set, r.Step, r.Generation,
		r.Since.UTC().Format(time.RFC3339), r.Digest)
}

// note is that of a coordinator.
type note struct {
	Name       string   `json:"name"`
	Key        []byte   `json:"key"`
	Signatures [][]byte `json:"signatures"`
	// Uses are the digests of what it uses, by set, Failed why something else is not.
	Uses   map[string]string `json:"uses"`
	Failed map[string]string `json:"failed,omitempty"`
	// Generations are those that it has reached.
	Generations map[string]int64 `json:"generations"`

	revision int64
}

func (n note) text() []byte {
	return bytes.Join([][]byte{[]byte("shoal coordinator key v1"), []byte(n.Name), n.Key}, []byte("\n"))
}

// state is all that the notes say.
type state struct {
	sets    map[string]record
	members map[string]note
}

func read(ctx context.Context, notes Notes) (state, error) {
	s := state{sets: map[string]record{}, members: map[string]note{}}
	all, err := notes.All(ctx)
	if err != nil {
		return s, err
	}
	for name, n := range all {
		s.add(name, n)
	}
	return s, nil
}

// add reads one note. What is none is as if it were not there.
func (s state) add(name string, n store.Note) {
	if len(n.Data) > maxNote {
		return
	}
	if set, ok := strings.CutPrefix(name, setPrefix); ok {
		r := record{}
		if json.Unmarshal(n.Data, &r) == nil && r.Set == set {
			r.revision = n.Revision
			s.sets[set] = r
		}
		return
	}
	if member, ok := strings.CutPrefix(name, memberPrefix); ok {
		m := note{}
		if json.Unmarshal(n.Data, &m) == nil && m.Name == member {
			m.revision = n.Revision
			s.members[member] = m
		}
	}
}
