package peer

import (
	"encoding/json"
	"errors"
)

// Magic begins each question among those that members of the gossip ask each other.
const Magic = 'L'

// verb is what a question is about.
type verb string

const (
	find  verb = "find"  // who has the layer?
	still verb = "still" // I am still getting these
	have  verb = "have"  // I have these
	gone  verb = "gone"  // I have these no more
)

// Limits of a question, and of an answer.
const (
	maxQuestion = 4 << 10
	maxKeys     = 64
	maxNames    = 8
)

// question is what a node asks the keeper of a key, or tells it.
type question struct {
	Verb    verb     `json:"verb"`
	Keys    [][]byte `json:"keys"`
	Port    uint16   `json:"port"` // where it gives layers itself
	Lost    []string `json:"lost,omitempty"`
	Busy    []string `json:"busy,omitempty"`
	Stalled bool     `json:"stalled,omitempty"`
	Slow    bool     `json:"slow,omitempty"`
}

// answer to a question of the verb find; no sources: get it from the registry.
type answer struct {
	Sources []Given `json:"sources,omitempty"`
}

var errQuestion = errors.New("malformed question about layers")

func (q question) encode() []byte {
	b, _ := json.Marshal(q) // of these types it always can
	return append([]byte{Magic}, b...)
}

func decodeQuestion(b []byte) (q question, keys []Key, err error) {
	if len(b) == 0 || b[0] != Magic || len(b) > maxQuestion {
		return q, nil, errQuestion
	}
	if err := json.Unmarshal(b[1:], &q); err != nil {
		return q, nil, errors.Join(errQuestion, err)
	}
	if len(q.Keys) == 0 || len(q.Keys) > maxKeys || len(q.Lost) > maxNames || len(q.Busy) > maxNames || q.Port == 0 {
		return q, nil, errQuestion
	}
	for _, k := range q.Keys {
		if len(k) != len(Key{}) {
			return q, nil, errQuestion
		}
		keys = append(keys, Key(k))
	}
	return q, keys, nil
}

func decodeAnswer(b []byte) (a answer, err error) {
	if len(b) > maxQuestion {
		return a, errQuestion
	}
	if err := json.Unmarshal(b, &a); err != nil {
		return a, errors.Join(errQuestion, err)
	}
	if len(a.Sources) > maxGiven {
		return a, errQuestion
	}
	return a, nil
}

func raw(keys []Key) [][]byte {
	out := make([][]byte, 0, len(keys))
	for _, k := range keys {
		out = append(out, k[:])
	}
	return out
}
