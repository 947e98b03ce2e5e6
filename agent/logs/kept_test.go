package logs

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// kept is a directory of all logs with those of some pods.
func kept(t *testing.T, k *Kept, files map[string]int) {
	t.Helper()
	k.Dir = t.TempDir()
	k.Log = slog.New(slog.DiscardHandler)
	k.Wake = make(chan struct{}, 1)
	if k.Delete == nil {
		k.Delete = os.RemoveAll
	}
	for name, bytes := range files {
		path := filepath.Join(k.Dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
			os.WriteFile(path, make([]byte, bytes), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

func there(t *testing.T, k *Kept) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(k.Dir, "*_*"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range names {
		names[i], _, _ = strings.Cut(strings.TrimPrefix(filepath.Base(names[i]), "ns_"), "_")
	}
	return strings.Join(names, " ")
}

// TestKept: logs stay for a while after their pod is gone, those of pods that are there for
// ever, and those whose pod went while no agent ran go by the time of their directory.
func TestKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lives := map[string]bool{"1": true, "2": true}
		k := &Kept{MaxAge: 10 * time.Minute, Lives: func(uid string) bool { return lives[uid] }}
		kept(t, k, map[string]int{"ns_a_1/c/0.log": 1, "ns_b_2/c/0.log": 1, "ns_old_3/c/0.log": 1, "x/0.log": 1})
		now := time.Now()
		for name, at := range map[string]time.Time{"ns_a_1": now.Add(-time.Hour), "ns_old_3": now.Add(-5 * time.Minute)} {
			if err := os.Chtimes(filepath.Join(k.Dir, name), at, at); err != nil {
				t.Fatal(err)
			}
		}
		go func() { _ = k.Run(t.Context()) }()
		check := func(after time.Duration, want string) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if got := there(t, k); got != want {
				t.Errorf("after %v: %q, want %q", time.Since(now), got, want)
			}
		}
		check(2*time.Minute, "a b old")
		check(4*time.Minute, "a b")
		delete(lives, "2")
		if err := k.Keep(filepath.Join(k.Dir, "ns_b_2")); err != nil {
			t.Fatal(err)
		}
		check(9*time.Minute, "a b")
		check(3*time.Minute, "a")
		if err := k.Keep(filepath.Join(k.Dir, "ns_never_9")); err != nil {
			t.Error("a pod without logs:", err)
		}
		check(48*time.Hour, "a")
		if names, _ := os.ReadDir(k.Dir); len(names) != 2 {
			t.Errorf("what is no pod's is not ours: %v", names)
		}
	})
}

func TestKeptNot(t *testing.T) {
	k := &Kept{Lives: func(string) bool { return true }}
	kept(t, k, map[string]int{"ns_a_1/c/0.log": 1})
	if err := k.Keep(filepath.Join(k.Dir, "ns_a_1")); err != nil || there(t, k) != "" {
		t.Errorf("%q, %v", there(t, k), err)
	}
}

// TestKeptBound: when all logs take too much, those of pods that are gone go first, then
// what is not written any more, the oldest first; what is written stays.
func TestKeptBound(t *testing.T) {
	const page = 4096
	files := map[string]int{
		"ns_gone_8/c/0.log": page, "ns_gone2_9/c/0.log": page,
		"ns_a_1/c/0.log": page, "ns_a_1/c/1.log": page, "ns_a_1/c/1.log.20260101-000000.0": page,
		"ns_a_1/d/0.log": page, "ns_a_1/d/0.log.20250101-000000": page, "ns_a_1/d/other": page,
	}
	for _, c := range []struct {
		pages int64
		left  []string
	}{
		{20, []string{"a/c/0.log", "a/c/1.log", "a/c/1.log.20260101-000000.0", "a/d/0.log", "a/d/0.log.20250101-000000",
			"a/d/other", "gone/c/0.log", "gone2/c/0.log"}},
		{9, []string{"a/c/0.log", "a/c/1.log", "a/c/1.log.20260101-000000.0", "a/d/0.log", "a/d/0.log.20250101-000000",
			"a/d/other", "gone2/c/0.log"}},
		{6, []string{"a/c/0.log", "a/c/1.log", "a/c/1.log.20260101-000000.0", "a/d/0.log", "a/d/0.log.20250101-000000",
			"a/d/other"}},
		{5, []string{"a/c/1.log", "a/c/1.log.20260101-000000.0", "a/d/0.log", "a/d/0.log.20250101-000000", "a/d/other"}},
		{4, []string{"a/c/1.log", "a/c/1.log.20260101-000000.0", "a/d/0.log", "a/d/other"}},
		{0, []string{"a/c/1.log", "a/d/0.log", "a/d/other"}},
	} {
		k := &Kept{MaxAge: time.Hour, MaxBytes: max(c.pages*page, 1), Lives: func(uid string) bool { return uid == "1" }}
		kept(t, k, files)
		now := time.Now()
		for i, name := range []string{"ns_gone_8", "ns_gone2_9", "ns_a_1/c/0.log", "ns_a_1/d/0.log.20250101-000000",
			"ns_a_1/c/1.log.20260101-000000.0", "ns_a_1/d/other"} {
			at := now.Add(time.Duration(i)*time.Minute - 10*time.Minute)
			if err := os.Chtimes(filepath.Join(k.Dir, name), at, at); err != nil {
				t.Fatal(err)
			}
		}
		k.look(t.Context(), now)
		var left []string
		found, err := filepath.Glob(filepath.Join(k.Dir, "*/*/*"))
		for _, f := range found {
			parts := strings.Split(strings.TrimPrefix(f, k.Dir+"/ns_"), "/")
			pod, _, _ := strings.Cut(parts[0], "_")
			left = append(left, filepath.Join(pod, parts[1], parts[2]))
		}
		slices.Sort(left)
		if err != nil || !slices.Equal(left, c.left) {
			t.Errorf("%d pages: %v, %v, want %v", c.pages, left, err, c.left)
		}
	}
}

func TestFind(t *testing.T) {
	k := &Kept{MaxAge: time.Hour, Lives: func(string) bool { return false }}
	kept(t, k, map[string]int{"ns_p_1/c/9.log": 1, "ns_p_1/c/10.log": 1, "ns_p_1/c/10.log.20260101-000000": 1,
		"ns_p_1/once/0.log": 1, "secret": 1})
	for _, c := range []struct {
		names    [4]string
		previous bool
		want     string
	}{
		{[4]string{"ns", "p", "1", "c"}, false, "ns_p_1/c/10.log"},
		{[4]string{"ns", "p", "1", "c"}, true, "ns_p_1/c/9.log"},
		{[4]string{"ns", "p", "1", "once"}, true, ""},
		{[4]string{"ns", "p", "2", "c"}, false, ""},
		{[4]string{"ns", "p", "1", ""}, false, ""},
		{[4]string{"ns", "p", "1", ".."}, false, ""},
		{[4]string{"ns", "p", "1/../..", "c"}, false, ""},
		{[4]string{"ns", "p", "1", "c/../../../secret"}, false, ""},
	} {
		f, ok := k.Find(c.names[0], c.names[1], c.names[2], c.names[3], c.previous)
		if got := strings.TrimPrefix(f.Path, k.Dir+"/"); got != c.want || ok != (c.want != "") {
			t.Errorf("%v: %q, %v", c.names, got, ok)
		}
	}
}
