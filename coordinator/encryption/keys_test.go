package encryption

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
)

// A rotation by root leaves the file to the user that the coordinator runs as.
func TestOwner(t *testing.T) {
	uid, gid := 12345, 12346
	if os.Geteuid() != 0 { // who is not root gives nothing away
		uid, gid = os.Geteuid(), os.Getegid()
	}
	f := File(filepath.Join(t.TempDir(), "encryption.yaml"))
	if err := f.Make(time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(string(f), uid, gid); err != nil {
		t.Fatal(err)
	}
	c, err := f.read()
	if err == nil {
		err = f.write(c)
	}
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(string(f))
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); int(st.Uid) != uid || int(st.Gid) != gid || info.Mode().Perm() != 0o600 {
		t.Errorf("owner %d:%d, mode %v", st.Uid, st.Gid, info.Mode())
	}
}

// A link stays what it is.
func TestLink(t *testing.T) {
	dir := t.TempDir()
	elsewhere, link := File(filepath.Join(dir, "elsewhere.yaml")), File(filepath.Join(dir, "encryption.yaml"))
	if err := elsewhere.Make(time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(string(elsewhere), string(link)); err != nil {
		t.Fatal(err)
	}
	c, err := link.read()
	if err != nil {
		t.Fatal(err)
	}
	if err := link.write(c); err == nil || !strings.Contains(err.Error(), "encryptionProviderConfig") {
		t.Errorf("replaced: %v", err)
	}
	data, err := os.ReadFile(string(link))
	if err != nil {
		t.Fatal(err)
	}
	if err := link.Install(data); err == nil || !strings.Contains(err.Error(), "encryptionProviderConfig") {
		t.Errorf("replaced by another coordinator's: %v", err)
	}
	if info, err := os.Lstat(string(link)); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("it is no link any more: %v, %v", info, err)
	}
}

func entry(keys ...string) apiserverv1.ResourceConfiguration {
	box := &apiserverv1.SecretboxConfiguration{}
	for _, k := range keys {
		box.Keys = append(box.Keys, apiserverv1.Key{Name: k})
	}
	return apiserverv1.ResourceConfiguration{Resources: []string{"secrets"},
		Providers: []apiserverv1.ProviderConfiguration{
			{Secretbox: box}, {Identity: &apiserverv1.IdentityConfiguration{}},
		}}
}

// shape is the keys of all entries, new ones as "new".
func shape(c *apiserverv1.EncryptionConfiguration, known ...string) string {
	var all []string
	for _, w := range lists(c) {
		var names []string
		for _, k := range *w.keys {
			name := "new"
			for _, n := range known {
				if n == k.Name {
					name = n
				}
			}
			names = append(names, name)
		}
		all = append(all, strings.Join(names, " "))
	}
	return strings.Join(all, "; ")
}

// The keys' names alone say how far a rotation has come, whoever named them.
func TestPhases(t *testing.T) {
	const a, b = "key-20260101T000000Z", "key-20260102T000000Z"
	now := time.Date(2025, 12, 31, 0, 0, 0, 0, time.UTC) // earlier than a and b: the clock went back
	for name, c := range map[string]struct {
		entries [][]string
		phase   phase
		added   string
	}{
		"one key":                {[][]string{{a}}, whole, a + " new"},
		"added":                  {[][]string{{a, b}}, added, ""},
		"promoted":               {[][]string{{b, a}}, promoted, ""},
		"own names":              {[][]string{{"x", "y"}}, whole, "x new y"},
		"own name, then added":   {[][]string{{"x", b, "y"}}, added, ""},
		"promoted over own name": {[][]string{{b, "x", "y"}}, promoted, ""},
		"two entries":            {[][]string{{a}, {"x"}}, whole, a + " new; x new"},
		"two entries, one late":  {[][]string{{b, a}, {"x", b}}, added, ""},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			conf := &apiserverv1.EncryptionConfiguration{}
			for _, keys := range c.entries {
				conf.Resources = append(conf.Resources, entry(keys...))
			}
			if got := progress(conf); got != c.phase {
				t.Fatalf("phase %d, want %d", got, c.phase)
			}
			if c.phase == whole {
				if err := add(conf, now); err != nil {
					t.Fatal(err)
				}
				if got := shape(conf, a, "x", "y"); got != c.added {
					t.Errorf("added: %s, want %s", got, c.added)
				}
			}
			promote(conf)
			if got := progress(conf); got != promoted {
				t.Errorf("after promotion: phase %d of %s", got, shape(conf, a, b, "x", "y"))
			}
			drop(conf)
			if got := progress(conf); got != whole {
				t.Errorf("in the end: phase %d of %s", got, shape(conf, a, b, "x", "y"))
			}
			for _, w := range lists(conf) {
				if len(*w.keys) != 1 || made((*w.keys)[0]).IsZero() {
					t.Errorf("left: %v", *w.keys)
				}
			}
		})
	}
}

// What the API server would not take is not written.
func TestInstallChecks(t *testing.T) {
	f := File(filepath.Join(t.TempDir(), "encryption.yaml"))
	if err := f.Make(time.Now()); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(string(f))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Install(good); err != nil {
		t.Fatalf("the coordinator's own: %v", err)
	}
	for name, data := range map[string]string{
		"nothing": "", "no_yaml": "{", "another_kind": "apiVersion: v1\nkind: Secret\n",
		"no_providers":  "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n",
		"no_kind":       strings.Replace(string(good), "kind: EncryptionConfiguration\n", "", 1),
		"a_short_key":   strings.Replace(string(good), "secret: ", "secret: AA==\n#", 1),
		"unknown_field": string(good) + "extra: 1\n",
		"too_long":      string(good) + strings.Repeat("\n", maxFile),
	} {
		t.Run(name, func(t *testing.T) {
			if err := f.Install([]byte(data)); err == nil {
				t.Error("it was written")
			}
		})
	}
	if now, err := os.ReadFile(string(f)); err != nil || string(now) != string(good) {
		t.Errorf("%s, %v", now, err)
	}
}

// counted is a coordinator that has nothing stored.
type counted struct{ API }

func (counted) State(context.Context) (State, error) { return State{}, nil }

// A last step that not all coordinators take is taken back: with the content of before,
// and what it is in the place of.
func TestDropTakenBack(t *testing.T) {
	now := time.Now()
	f := File(filepath.Join(t.TempDir(), "encryption.yaml"))
	if err := f.Make(now); err != nil {
		t.Fatal(err)
	}
	c, err := f.read()
	if err != nil {
		t.Fatal(err)
	}
	if err := add(c, now.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	promote(c)
	if err := f.write(c); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(string(f))
	if err != nil {
		t.Fatal(err)
	}
	var spread, bad, restored []byte
	r := Rotation{File: f, API: counted{}, Out: io.Discard,
		Spread: func(_ context.Context, _, data []byte) error {
			spread = data
			return errors.Join(errors.New("one is behind"), f.Install(data))
		},
		Restore: func(ctx context.Context, old, data []byte) error {
			restored, bad = old, data
			return ctx.Err()
		},
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // the command was interrupted
	if err := r.drop(ctx); err == nil || !strings.Contains(err.Error(), "one is behind") {
		t.Errorf("%v", err)
	}
	if string(restored) != string(before) || string(bad) != string(spread) || string(spread) == string(before) {
		t.Errorf("put back: %s\nin the place of: %s\nspread was: %s", restored, bad, spread)
	}
}
