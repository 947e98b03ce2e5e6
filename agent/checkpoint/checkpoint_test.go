package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

type thing struct {
	N int
	S string `json:",omitempty"`
}

func keysOf(t testing.TB, secrets ...string) *Keys {
	t.Helper()
	list := make([][]byte, len(secrets))
	for i, s := range secrets {
		list[i] = []byte(strings.Repeat(s, minSecret))
	}
	k, err := NewKeys(list...)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func openIn(t *testing.T, dir string, k *Keys) (*Store[thing], *bytes.Buffer) {
	t.Helper()
	said := &bytes.Buffer{}
	s, err := Open[thing](dir, k, slog.New(slog.NewTextHandler(said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, said
}

func put(t *testing.T, s *Store[thing], key, value string) {
	t.Helper()
	if err := s.Put(key, &thing{len(key), value}); err != nil {
		t.Fatal(err)
	}
}

// onDisk is all that is in a directory.
func onDisk(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&all, "%s: %s\n", e.Name(), data)
	}
	return all.String()
}

// A damaged record is moved aside and told once; the others are whole.
func TestDamage(t *testing.T) {
	for name, k := range map[string]*Keys{"clear": nil, "sealed": keysOf(t, "a")} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s, said := openIn(t, dir, k)
			for _, key := range []string{"a/b", "c", "d", "e"} {
				put(t, s, key, "")
			}
			if err := os.WriteFile(filepath.Join(dir, "c.json"), []byte("00000000\n{}"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(filepath.Join(dir, "d.json"), 0); err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(filepath.Join(dir, "e.json"), 40); err == nil && k == nil {
				err = os.Truncate(filepath.Join(dir, "e.json"), 12)
				if err != nil {
					t.Fatal(err)
				}
			}
			for range 2 {
				all, err := s.All()
				if err != nil || len(all) != 1 || all["a/b"].N != 3 {
					t.Fatalf("%v %v", all, err)
				}
			}
			if n := strings.Count(said.String(), "moved aside"); n != 3 {
				t.Errorf("told %d times: %s", n, said)
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
		})
	}
}

// Records in the clear are taken over: read, sealed, and not left behind, also
// not as temporary or damaged files.
func TestAdopt(t *testing.T) {
	dir := t.TempDir()
	old, _ := openIn(t, dir, nil)
	put(t, old, "a/b", "password")
	put(t, old, "c", "password")
	for name, text := range map[string]string{"x.json.tmp": "password", "y.json.damaged": "password", "z.json": "00000000\npassword"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "layer"), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time there is nothing to do
		s, _ := openIn(t, dir, keysOf(t, "a"))
		if left := onDisk(t, dir); strings.Contains(left, "password") {
			t.Fatalf("in the clear: %s", left)
		}
		all, err := s.All()
		if err != nil || len(all) != 2 || all["a/b"].S != "password" || all["c"].S != "password" {
			t.Fatalf("%v %v", all, err)
		}
		if v, err := s.Get("c"); err != nil || v.S != "password" {
			t.Fatalf("%v %v", v, err)
		}
	}
}

// With a new key before the old one all records come under the new one. Without
// the old one they are set aside, with a word on how to get them back.
func TestChangeKey(t *testing.T) {
	dir := t.TempDir()
	s, _ := openIn(t, dir, keysOf(t, "a"))
	put(t, s, "r", "one")
	openIn(t, dir, keysOf(t, "b", "a"))
	s, said := openIn(t, dir, keysOf(t, "b"))
	if v, err := s.Get("r"); err != nil || v.S != "one" || said.Len() != 0 {
		t.Fatalf("%v %v %s", v, err, said)
	}
	s, said = openIn(t, dir, keysOf(t, "c"))
	if v, err := s.Get("r"); v != nil || err != nil || !strings.Contains(said.String(), "put their key back as checkpointKeyFile") {
		t.Fatalf("%v %v %s", v, err, said)
	}
	path := filepath.Join(dir, "r.json")
	if err := os.Rename(path+damagedSuffix, path); err != nil {
		t.Fatal(err)
	}
	s, _ = openIn(t, dir, keysOf(t, "b"))
	if v, err := s.Get("r"); err != nil || v.S != "one" {
		t.Fatalf("%v %v", v, err)
	}
}

// A record cannot be taken for another, of the same store or of another.
func TestSwap(t *testing.T) {
	top, k := t.TempDir(), keysOf(t, "a")
	pods, _ := openIn(t, filepath.Join(top, "pods"), k)
	put(t, pods, "a", "one")
	data, err := os.ReadFile(filepath.Join(top, "pods", "a.json"))
	if err != nil {
		t.Fatal(err)
	}
	tokens, _ := openIn(t, filepath.Join(top, "tokens"), k)
	for path, s := range map[string]*Store[thing]{"pods/b.json": pods, "tokens/a.json": tokens} {
		if err := os.WriteFile(filepath.Join(top, path), data, 0o600); err != nil {
			t.Fatal(err)
		}
		if v, err := s.Get(strings.TrimSuffix(filepath.Base(path), suffix)); v != nil || err == nil {
			t.Errorf("%s was taken: %v %v", path, v, err)
		}
	}
}

// Clear forgets what matches, damaged or not.
func TestClear(t *testing.T) {
	dir := t.TempDir()
	s, _ := openIn(t, dir, keysOf(t, "a"))
	put(t, s, "secret_a", "")
	put(t, s, "other", "")
	put(t, s, "secret_b", "")
	if err := os.Rename(filepath.Join(dir, "secret_b.json"),
		filepath.Join(dir, "secret_b.json"+damagedSuffix)); err != nil {
		t.Fatal(err)
	}
	if err := s.Clear(func(key string) bool { return strings.HasPrefix(key, "secret_") }); err != nil {
		t.Fatal(err)
	}
	if left := onDisk(t, dir); strings.Contains(left, "secret_") || !strings.Contains(left, "other.json") {
		t.Errorf("left: %s", left)
	}
}

// The key is the credential that systemd passed, else the file, made once with
// nobody else to read it.
func TestFindKeys(t *testing.T) {
	dir := t.TempDir()
	file, credentials := filepath.Join(dir, "etc", "checkpoint.key"), filepath.Join(dir, "credentials")
	t.Setenv("CREDENTIALS_DIRECTORY", "")
	first, chosen, err := FindKeys(file, "")
	if err != nil || chosen.Key != file || !strings.Contains(chosen.Why, "made now") {
		t.Fatalf("%v %v", chosen, err)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", st, err)
	}
	again, chosen, err := FindKeys(file, "")
	if err != nil || again.list[0].id != first.list[0].id || strings.Contains(chosen.Why, "made now") {
		t.Fatalf("%v %v", chosen, err)
	}
	if err := os.MkdirAll(credentials, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CREDENTIALS_DIRECTORY", credentials)
	if _, chosen, err = FindKeys(file, ""); err != nil || chosen.Key != file {
		t.Fatalf("other credentials: %v %v", chosen, err)
	}
	if err := os.WriteFile(filepath.Join(credentials, Credential),
		bytes.Repeat([]byte("k"), minSecret), 0o400); err != nil {
		t.Fatal(err)
	}
	both, chosen, err := FindKeys(file, "")
	if err != nil || len(both.list) != 2 || both.list[1].id != first.list[0].id ||
		chosen.Key != "systemd credential "+Credential {
		t.Fatalf("%v %v", chosen, err)
	}
	t.Setenv("CREDENTIALS_DIRECTORY", "")
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := FindKeys(file, ""); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a key that others can read: %v", err)
	}
	if err := os.WriteFile(file, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := FindKeys(file, ""); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a short key: %v", err)
	}
}

// TestSpareKey: what is done to the file of the key costs no record while the machine runs.
func TestSpareKey(t *testing.T) {
	t.Setenv("CREDENTIALS_DIRECTORY", "")
	for name, damage := range map[string]func(file string) error{
		"deleted":   os.Remove,
		"cut":       func(file string) error { return os.Truncate(file, 20) },
		"changed":   func(file string) error { return os.WriteFile(file, bytes.Repeat([]byte("x"), 44), 0o600) },
		"directory": func(file string) error { return errors.Join(os.Remove(file), os.Mkdir(file, 0o700)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file, spare := filepath.Join(dir, "checkpoint.key"), filepath.Join(dir, "run", "checkpoint.key")
			records := filepath.Join(dir, "pods")
			find := func() *Keys {
				t.Helper()
				k, chosen, err := FindKeys(file, spare)
				if err != nil {
					t.Fatalf("%v %v", chosen, err)
				}
				s, said := openIn(t, records, k)
				if v, err := s.Get("a"); err != nil || v == nil || v.S != "kept" {
					t.Fatalf("%v %v %s", v, err, said)
				}
				return k
			}
			k, _, err := FindKeys(file, spare)
			if err != nil {
				t.Fatal(err)
			}
			s, _ := openIn(t, records, k)
			put(t, s, "a", "kept")
			for range 2 { // the spare is that of the new file, too
				if err := k.Remember(spare); err != nil {
					t.Fatal(err)
				}
				if st, err := os.Stat(spare); err != nil || st.Mode() != 0o600 {
					t.Fatalf("%v %v", st, err)
				}
				if err := damage(file); err != nil {
					t.Fatal(err)
				}
				k = find()
			}
			if st, err := os.Stat(file); err != nil || st.Mode() != 0o600 {
				t.Errorf("%v %v", st, err)
			}
			if err := os.WriteFile(spare, []byte("no key"), 0o600); err != nil {
				t.Fatal(err)
			}
			find()
		})
	}
}

// FuzzDecode gives the decoder of records what it did not write: it takes
// nothing that was sealed with another key or for another record.
func FuzzDecode(f *testing.F) {
	k := keysOf(f, "a")
	s := &Store[thing]{dir: "/pods", keys: k}
	body := []byte(`{"N":1}`)
	mine, err := s.encode("a", body)
	if err != nil {
		f.Fatal(err)
	}
	inClear, err := (&Store[thing]{dir: "/pods"}).encode("a", body)
	if err != nil {
		f.Fatal(err)
	}
	other, err := s.encode("b", body)
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range [][]byte{mine, inClear, other, mine[:headSize], mine[:headSize+24], []byte(sealedHead), nil} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := s.decode("a", data)
		if err == nil && sealed(data) && !bytes.Equal(got, body) {
			t.Errorf("took %q as %q", data, got)
		}
		if _, other := s.decode("b", data); err == nil && other == nil && sealed(data) {
			t.Error("took another record's")
		}
	})
}

// TestPutNow: a store that nobody closed has the record, and no half of one.
func TestPutNow(t *testing.T) {
	dir := t.TempDir()
	s, _ := openIn(t, dir, nil)
	for _, value := range []string{"one", "two", "two"} {
		if err := s.PutNow("a", &thing{1, value}); err != nil {
			t.Fatal(err)
		}
		next, _ := openIn(t, dir, nil)
		if got, err := next.Get("a"); err != nil || got == nil || got.S != value {
			t.Errorf("got %+v, %v, want %s", got, err, value)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.PutNow("a", &thing{1, "three"}); err == nil {
		t.Error("a record was put where no directory can be")
	}
}

// TestVolatile checks that a record that follows another is all that is there, and that an
// agent which was killed between the two steps of putting it there loses nothing.
func TestVolatile(t *testing.T) {
	dir := t.TempDir()
	s, err := OpenVolatile[thing](dir, nil, "damaged", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []string{"first", "second", "third"} {
		put(t, s, "a", v)
		if v == "second" {
			if err := os.WriteFile(s.path("a")+".tmp", []byte("left behind"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		entries, err := os.ReadDir(dir)
		if err != nil || v != "second" && len(entries) != 1 {
			t.Errorf("after %s there are %v, %v", v, entries, err)
		}
		if got, err := s.Get("a"); err != nil || got == nil || got.S != v {
			t.Errorf("the record is %+v, %v, want %s", got, err, v)
		}
	}
}

// TestInTheWay: what stands where records, their directory and their temporary files belong
// is moved aside, and the store works.
func TestInTheWay(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pods")
	if err := os.WriteFile(dir, []byte("in the way"), 0o600); err != nil {
		t.Fatal(err)
	}
	k := keysOf(t, "a")
	s, _ := openIn(t, dir, k)
	inTheWay := func() {
		t.Helper()
		for name, in := range map[string]string{"a.json": "in", "b.json.tmp": ""} {
			path := filepath.Join(dir, name)
			if err := errors.Join(os.RemoveAll(path), os.MkdirAll(filepath.Join(path, in), 0o700)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 2 {
		inTheWay()
		put(t, s, "a", "written")
		put(t, s, "b", "written")
		s, _ = openIn(t, dir, k)
		if all, err := s.All(); err != nil || len(all) != 2 {
			t.Fatalf("%v %v", all, err)
		}
		inTheWay()
		s, _ = openIn(t, dir, k)
		if all, err := s.All(); err != nil || len(all) != 1 {
			t.Fatalf("%v %v", all, err)
		}
		if v, err := s.Get("a"); err != nil || v != nil {
			t.Fatalf("%v %v", v, err)
		}
		if err := s.Delete("b"); err != nil {
			t.Fatal(err)
		}
	}
}

// An administrator deletes what a node keeps while it runs: it keeps on, also what it has
// kept before.
func TestDirectoryGone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pods")
	s, _ := openIn(t, dir, keysOf(t, "a"))
	put(t, s, "a", "one")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	put(t, s, "b", "two")
	put(t, s, "a", "one")
	all, err := s.All()
	if err != nil || len(all) != 2 || all["a"].S != "one" {
		t.Errorf("%v, %v", all, err)
	}
}
