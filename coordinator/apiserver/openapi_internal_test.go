package apiserver

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/shoal-project/shoal/coordinator/apiserver/openapi"
)

// A document with custom resources is rendered once for all who ask for it, and
// again when the definitions have changed.
func TestMergedDocuments(t *testing.T) {
	var m mergedDocuments
	var rendered atomic.Int32
	get := func(name, hash, text string) {
		t.Helper()
		gz, err := m.get(name, hash, func() ([]byte, error) {
			rendered.Add(1)
			return []byte(text), nil
		})
		if err != nil {
			t.Error(err)
			return
		}
		if plain, err := (openapi.Document{GZ: gz}).Plain(); err != nil || string(plain) != text {
			t.Errorf("%s at %s: %q, %v", name, hash, plain, err)
		}
	}
	expect := func(want int32) {
		t.Helper()
		if n := rendered.Load(); n != want {
			t.Errorf("rendered %d times, want %d", n, want)
		}
	}
	failure := errors.New("no")
	if _, err := m.get("json", "1", func() ([]byte, error) { return nil, failure }); !errors.Is(err, failure) {
		t.Errorf("a failure: %v", err)
	}
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() { get("json", "1", "one") })
	}
	all.Wait()
	expect(1)
	get("proto", "1", "one in protobuf")
	get("json", "1", "one")
	expect(2)
	get("json", "2", "two")
	get("json", "2", "two")
	expect(3)
}
