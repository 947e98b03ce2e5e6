package gossipkeys

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/coordinator/pki"
)

// fleet is three nodes; the coordinator's keys are the file's.
type fleet struct {
	t    *testing.T
	file string
	keys map[string][]string // by node
	away map[string]bool
	// fail ends the rotation at the nth key file that is given.
	fail, given int
}

var errAway = errors.New("no route to host")

func newFleet(t *testing.T) *fleet {
	f := &fleet{
		t: t, file: filepath.Join(t.TempDir(), "gossip.key"), keys: map[string][]string{}, away: map[string]bool{},
	}
	first := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{1}, 32)) + "\n"
	if err := os.WriteFile(f.file, []byte(first), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{"a", "b", "c"} {
		f.keys[node], _ = gossip.Prints([]byte(first))
	}
	return f
}

func (f *fleet) Names(context.Context) ([]string, error) {
	f.check()
	return slices.Sorted(maps.Keys(f.keys)), nil
}

func (f *fleet) Give(_ context.Context, node string, file []byte) ([]string, error) {
	if f.given++; f.given == f.fail || f.away[node] {
		return nil, errAway
	}
	prints, err := gossip.Prints(file)
	f.keys[node] = prints
	f.check()
	return prints, err
}

// check holds that each member, the coordinator too, opens what each other seals.
func (f *fleet) check() {
	f.t.Helper()
	data, err := os.ReadFile(f.file)
	if err != nil {
		f.t.Fatal(err)
	}
	own, err := gossip.Prints(data)
	if err != nil {
		f.t.Fatal(err)
	}
	all := maps.Clone(f.keys)
	all["coordinator"] = own
	for from, keys := range all {
		for to, known := range all {
			if !slices.Contains(known, keys[0]) {
				f.t.Errorf("%s does not open what %s seals: %v", to, from, all)
			}
		}
	}
}

func (f *fleet) rotation() (Rotation, *bytes.Buffer) {
	out := &bytes.Buffer{}
	spread := func(_ context.Context, _, data []byte) error { return pki.WriteFile(f.file, data, 0o600) }
	return Rotation{File: f.file, Nodes: f, Out: out, Spread: spread}, out
}

func (f *fleet) rotated(before []string) {
	f.t.Helper()
	for node, keys := range f.keys {
		if len(keys) != 1 || keys[0] == before[0] {
			f.t.Errorf("%s uses %v, before %v", node, keys, before)
		}
	}
	data, err := os.ReadFile(f.file)
	own, _ := gossip.Prints(data)
	if err != nil || !slices.Equal(own, f.keys["a"]) || strings.Contains(string(data), "#") {
		f.t.Errorf("file: %q %v", data, err)
	}
	if info, err := os.Stat(f.file); err != nil || info.Mode().Perm() != 0o600 {
		f.t.Errorf("%v %v", info, err)
	}
}

// A rotation that is interrupted anywhere, also by its own end, goes on; at no moment
// are there two members that do not understand each other.
func TestRotate(t *testing.T) {
	for fail := range 11 {
		t.Run(fmt.Sprint("fails at ", fail), func(t *testing.T) {
			f := newFleet(t)
			before := f.keys["a"]
			f.fail = fail
			r, out := f.rotation()
			err := r.Run(t.Context())
			if failed := fail > 0 && fail <= 9; failed != errors.Is(err, errAway) || !failed && err != nil {
				t.Fatalf("%v\n%s", err, out)
			} else if failed {
				r, out = f.rotation()
				if err := r.Run(t.Context()); err != nil || !strings.Contains(out.String(), "going on") {
					t.Fatalf("again: %v\n%s", err, out)
				}
			}
			f.rotated(before)
		})
	}
}

// A node that is away holds the rotation, is named, and gets the keys when it is back.
func TestNodeIsAway(t *testing.T) {
	f := newFleet(t)
	before := f.keys["a"]
	f.away["b"] = true
	for range 2 {
		r, out := f.rotation()
		if err := r.Run(t.Context()); !errors.Is(err, errAway) || !strings.Contains(err.Error(), "node b: ") ||
			strings.Contains(err.Error(), "node a: ") {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	if !slices.Equal(f.keys["b"], before) || len(f.keys["a"]) != 2 {
		t.Errorf("keys: %v", f.keys)
	}
	f.away["b"] = false
	r, out := f.rotation()
	if err := r.Run(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f.rotated(before)

	// A Node that was deleted is not waited for.
	before = f.keys["a"]
	delete(f.keys, "c")
	if err := r.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.rotated(before)
}

func TestRefuses(t *testing.T) {
	key := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{1}, 32)) + "\n"
	for name, tc := range map[string]struct{ file, want string }{
		"none":         {"", "0 keys"},
		"by hand":      {key + key, "2 keys: end the rotation that was begun by hand"},
		"unknown step": {mark + "eaten\n" + key, `unknown step, "eaten"`},
		"lost key":     {mark + added + "\n" + key, "put back"},
		"no key":       {"short\n", "base64"},
	} {
		f := newFleet(t)
		if err := os.WriteFile(f.file, []byte(tc.file), 0o600); err != nil {
			t.Fatal(err)
		}
		r, _ := f.rotation()
		if err := r.Run(t.Context()); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
		}
		if data, err := os.ReadFile(f.file); err != nil || string(data) != tc.file {
			t.Errorf("%s: the file is %q %v", name, data, err)
		}
	}
}
