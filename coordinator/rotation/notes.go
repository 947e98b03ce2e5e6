package rotation

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/shoal-project/shoal/coordinator/pki"
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
}

// text is what is signed of a note: all of it. Maps are encoded in the order of their keys.
func (n note) text() ([]byte, error) {
	n.Signatures = nil
	data, err := json.Marshal(n)
	return append([]byte("shoal coordinator keys v2\n"), data...), err
}

// state is all that the notes say, whoever wrote them: what counts of it believed and told
// return.
type state struct {
	sets    map[string]record
	members map[string]note
	// revisions are those of all notes, of what is none too: it may be written over.
	revisions map[string]int64
	// cas are the files of this coordinator's CAs, which vouch for the others' notes,
	// generations the steps that it has taken.
	cas         pki.Files
	generations map[string]int64
}

// farAhead is more steps than coordinators take while one is away.
const farAhead = 1 << 20

// possible tells whether a step of a set may have been taken by now.
func (s state) possible(set string, generation int64) bool {
	return generation > 0 && generation-s.generations[set] < farAhead
}

// believed returns a set's record if a CA has signed it that this coordinator believes.
func (s state) believed(set string) (record, bool) {
	r, known := s.sets[set]
	return r, known && s.possible(set, r.Generation) && vouched(s.cas, r.text(), r.Signatures)
}

// told returns a coordinator's note, and whether a CA has signed it that this one believes.
func (s state) told(name string) (n note, known, signed bool) {
	n, known = s.members[name]
	if !known {
		return n, false, false
	}
	text, err := n.text()
	return n, true, err == nil && vouched(s.cas, text, n.Signatures)
}

func newState() state {
	return state{sets: map[string]record{}, members: map[string]note{}, revisions: map[string]int64{}}
}

func (m *Member) read(ctx context.Context) (s state, err error) {
	s = newState()
	if s.cas, err = m.cas(); err != nil {
		return s, err
	}
	if s.generations, err = m.generations(); err != nil {
		return s, err
	}
	all, err := m.Notes.All(ctx)
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
	s.revisions[name] = n.Revision
	if len(n.Data) > maxNote {
		return
	}
	if set, ok := strings.CutPrefix(name, setPrefix); ok {
		r := record{}
		if json.Unmarshal(n.Data, &r) == nil && r.Set == set {
			s.sets[set] = r
		}
		return
	}
	if member, ok := strings.CutPrefix(name, memberPrefix); ok {
		m := note{}
		if json.Unmarshal(n.Data, &m) == nil && m.Name == member {
			s.members[member] = m
		}
	}
}
