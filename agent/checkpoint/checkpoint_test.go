package checkpoint

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

type thing struct{ N int }

// A damaged record is moved aside and told once; the others are whole.
func TestDamage(t *testing.T) {
	dir := t.TempDir()
	var said bytes.Buffer
	s, err := Open[thing](dir, slog.New(slog.NewTextHandler(&said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, k := range []string{"a/b", "c", "d"} {
		if err := s.Put(k, &thing{len(k)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "c.json"), []byte("00000000\n{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(dir, "d.json"), 0); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		all, err := s.All()
		if err != nil || len(all) != 1 || all["a/b"].N != 3 {
			t.Fatalf("%v %v", all, err)
		}
	}
	if n := strings.Count(said.String(), "moved aside"); n != 2 {
		t.Errorf("told %d times: %s", n, said.String())
	}
	st, err := os.Stat(filepath.Join(dir, "a%2Fb.json"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", st, err)
	}
	if err := s.Delete("a/b"); err != nil {
		t.Fatal(err)
	}
	if v, err := s.Get("a/b"); v != nil || err != nil {
		t.Errorf("deleted: %v %v", v, err)
	}
}
