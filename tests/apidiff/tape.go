package main

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// tapeFile holds upstream's answers to the requests that every change is
// compared by.
const tapeFile = "tests/apidiff/upstream.jsonl.zst"

// tapeLimit is more than all lines of a tape have.
const tapeLimit = 1 << 30

// tape holds what one server has answered, so that it need not run.
type tape struct {
	Seed uint64 `json:"seed"`
	N    int    `json:"n"`

	playing bool
	mu      sync.Mutex
	answers map[string]recorded
}

// recorded is an answer with the request that it is to.
type recorded struct {
	Key      string   `json:"key"`
	Path     string   `json:"path"`
	Code     int      `json:"code"`
	Warnings []string `json:"warnings,omitempty"`
	Body     string   `json:"body"`
}

// key stands for a request.
func (r request) key() string {
	h := sha256.New()
	for _, s := range []string{r.Method, r.Path, r.Type, r.Accept, string(r.Body)} {
		fmt.Fprintf(h, "%d %s", len(s), s)
	}
	if r.as != nil {
		fmt.Fprintf(h, " as %q", append([]string{r.as.Name}, r.as.Groups...))
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// onTape tells whether a request's answer is recorded: all of OpenAPI but what
// requests are made from would be most of the file.
func (r request) onTape() bool { return !strings.HasPrefix(r.Path, "/openapi/v3") }

// keep records an answer.
func (t *tape) keep(r request, a answer) error {
	if !r.onTape() {
		return nil
	}
	if r.Path == "/openapi/v2" {
		var doc struct {
			Definitions definitions `json:"definitions"`
		}
		if err := json.Unmarshal(a.Body, &doc); err != nil {
			return fmt.Errorf("record %s: %w", r.Path, err)
		}
		for name, d := range doc.Definitions {
			maps.DeleteFunc(d.Properties, func(_ string, p property) bool { return len(p.Enum) == 0 })
			if doc.Definitions[name] = d; len(d.Properties)+len(d.Required) == 0 {
				delete(doc.Definitions, name)
			}
		}
		a.Body = encode(doc)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.answers[r.key()] = recorded{r.key(), r.Path, a.Code, a.Warnings, string(a.Body)}
	return nil
}

// play answers a request as it was answered before.
func (t *tape) play(r request) (answer, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a, ok := t.answers[r.key()]
	if !ok {
		return answer{}, fmt.Errorf("%s has no answer to %s %s %s: run make api-diff ARGS=-record",
			tapeFile, r.Method, r.Path, cut(string(r.Body), 200))
	}
	return answer{Code: a.Code, Warnings: a.Warnings, Body: []byte(a.Body)}, nil
}

// write writes the tape, requests of a path beside each other.
func (t *tape) write(file string) error {
	var out bytes.Buffer
	z, err := zstd.NewWriter(&out, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithWindowSize(8<<20))
	if err != nil {
		return err
	}
	lines := json.NewEncoder(z)
	err = lines.Encode(t)
	for _, a := range slices.SortedFunc(maps.Values(t.answers), func(a, b recorded) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Key, b.Key))
	}) {
		err = errors.Join(err, lines.Encode(a))
	}
	if err := errors.Join(err, z.Close()); err != nil {
		return err
	}
	return os.WriteFile(file, out.Bytes(), 0o644)
}

// readTape reads what write has written.
func readTape(file string) (*tape, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	z, err := zstd.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	t := &tape{playing: true, answers: map[string]recorded{}}
	lines := json.NewDecoder(bufio.NewReader(io.LimitReader(z, tapeLimit)))
	if err := lines.Decode(t); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for {
		var a recorded
		err := lines.Decode(&a)
		if errors.Is(err, io.EOF) {
			return t, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		t.answers[a.Key] = a
	}
}
