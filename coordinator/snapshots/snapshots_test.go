package snapshots

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

type fakeStore struct {
	fails atomic.Bool
	tries atomic.Int64
}

func (*fakeStore) Size() int64 { return 1 << 10 }

func (f *fakeStore) Snapshot(w io.Writer) error {
	f.tries.Add(1)
	if f.fails.Load() {
		return errors.New("broken")
	}
	_, err := io.WriteString(w, "data")
	return err
}

func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return strings.Join(out, " ")
}

// The schedule takes one after another, keeps some, and leaves what an operator took;
// one that fails leaves nothing, and the next comes at its time.
func TestSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeStore{}
		k := &Keeper{
			Store: s, Dir: filepath.Join(t.TempDir(), "snapshots"), Every: time.Hour, Keep: 2,
			Keys: func() ([]byte, error) { return []byte("keys"), nil }, Log: slog.New(slog.DiscardHandler),
		}
		go k.Run(t.Context())
		if _, err := k.Take(time.Now()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		const own = "manual-20000101T000000Z.db manual-20000101T000000Z.keys"
		for _, c := range []struct {
			after time.Duration
			fails bool
			want  string
		}{
			{9 * time.Minute, false, own},
			{2 * time.Minute, false, own + " scheduled-20000101T001000Z.db scheduled-20000101T001000Z.keys"},
			{time.Hour, false, own + " scheduled-20000101T001000Z.db scheduled-20000101T001000Z.keys" +
				" scheduled-20000101T011000Z.db scheduled-20000101T011000Z.keys"},
			{time.Hour, false, own + " scheduled-20000101T011000Z.db scheduled-20000101T011000Z.keys" +
				" scheduled-20000101T021000Z.db scheduled-20000101T021000Z.keys"},
		} {
			time.Sleep(c.after)
			synctest.Wait()
			if got := names(t, k.Dir); got != c.want {
				t.Errorf("%s: %s", time.Now(), got)
			}
		}
		s.fails.Store(true)
		time.Sleep(time.Hour)
		synctest.Wait()
		s.fails.Store(false)
		if got := names(t, k.Dir); strings.Contains(got, "T031000Z") {
			t.Errorf("what failed left %s", got)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := names(t, k.Dir); !strings.Contains(got, "scheduled-20000101T041000Z.db") {
			t.Errorf("after one that failed: %s", got)
		}
	})
}

// fakeRemote keeps what the copies are called.
type fakeRemote struct {
	mu      sync.Mutex
	copies  []Copy
	fails   bool
	lists   int
	pruned  int
	uploads []string
}

func (f *fakeRemote) List(context.Context) ([]Copy, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists++
	if f.fails {
		return nil, errors.New("no line")
	}
	return f.copies, nil
}

func (f *fakeRemote) Upload(_ context.Context, s Snapshot) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.copies = append(f.copies, Copy{Snapshot: s})
	f.uploads = append(f.uploads, filepath.Base(s.File))
	return "s3://b/" + filepath.Base(s.File), nil
}

func (f *fakeRemote) Prune(context.Context, time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pruned++
	return nil
}

func (f *fakeRemote) set(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

// What the schedule takes is copied, once; what could not be is copied later; what another
// coordinator has copied lately is enough.
func TestScheduleCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &fakeRemote{}
		k := &Keeper{Store: &fakeStore{}, Dir: t.TempDir(), Every: 2 * time.Hour, Keep: 2, Remote: r,
			Log: slog.New(slog.DiscardHandler)}
		go k.Run(t.Context())
		wait := func(d time.Duration, want string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			r.mu.Lock()
			defer r.mu.Unlock()
			if got := strings.Join(r.uploads, " "); got != want {
				t.Errorf("%s: copied %s", time.Now(), got)
			}
		}
		const first = "scheduled-20000101T001000Z.db"
		wait(11*time.Minute, first)
		wait(119*time.Minute, first+" scheduled-20000101T021000Z.db")
		r.set(func() { r.fails = true })
		wait(2*time.Hour, first+" scheduled-20000101T021000Z.db")
		r.set(func() { r.fails = false })
		wait(10*time.Minute, first+" scheduled-20000101T021000Z.db scheduled-20000101T041000Z.db")
		r.set(func() {
			if r.lists > 6 || r.pruned != 3 {
				t.Errorf("asked %d times, pruned %d times", r.lists, r.pruned)
			}
			r.copies = append(r.copies, Copy{Snapshot: Snapshot{ // by another, half an hour before the next
				File: "s3://b/scheduled-20000101T054000Z.db", Time: time.Date(2000, 1, 1, 5, 40, 0, 0, time.UTC)}})
		})
		wait(2*time.Hour, first+" scheduled-20000101T021000Z.db scheduled-20000101T041000Z.db")
		wait(2*time.Hour, first+" scheduled-20000101T021000Z.db scheduled-20000101T041000Z.db scheduled-20000101T081000Z.db")
	})
}

// A restart does not take another, and a clock that was ahead does not keep the next away.
func TestDue(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	k := &Keeper{Every: 12 * time.Hour}
	at := func(d time.Duration) Snapshot { return Snapshot{File: scheduled + "x", Time: now.Add(d)} }
	for name, c := range map[string]struct {
		list []Snapshot
		want time.Duration
	}{
		"none":   {nil, soon},
		"recent": {[]Snapshot{at(-30 * time.Hour), at(-time.Hour)}, 11 * time.Hour},
		"old":    {[]Snapshot{at(-30 * time.Hour)}, soon},
		"ahead":  {[]Snapshot{at(-2 * time.Hour), at(1000 * time.Hour)}, 10 * time.Hour},
		"manual": {[]Snapshot{{File: manual + "x", Time: now}}, soon},
	} {
		if got := k.due(c.list, now, now); got != now.Add(c.want) {
			t.Errorf("%s: in %s", name, got.Sub(now))
		}
	}
}

func TestServe(t *testing.T) {
	k := &Keeper{Store: &fakeStore{}, Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}
	for _, c := range []struct {
		method, says string
		code         int
	}{
		{"GET", "null", 200}, {"POST", "manual-", 200}, {"GET", "manual-", 200}, {"PUT", "use GET or POST", 405},
	} {
		w := httptest.NewRecorder()
		k.ServeHTTP(w, httptest.NewRequest(c.method, Path, nil))
		if w.Code != c.code || !strings.Contains(w.Body.String(), c.says) {
			t.Errorf("%s: %d %s", c.method, w.Code, w.Body)
		}
	}
	ask := func() string {
		w := httptest.NewRecorder()
		k.ServeHTTP(w, httptest.NewRequest("POST", Path+"?copy=s3", nil))
		return w.Body.String()
	}
	if got := ask(); !strings.Contains(got, "set snapshotS3Endpoint") {
		t.Error(got)
	}
	k.Remote = &fakeRemote{}
	if got := ask(); !strings.Contains(got, `"copy":"s3://b/manual-`) {
		t.Error(got)
	}
	broken := &fakeStore{}
	broken.fails.Store(true)
	k.Store = broken
	w := httptest.NewRecorder()
	if k.ServeHTTP(w, httptest.NewRequest("POST", Path, nil)); w.Code != 500 || !strings.Contains(w.Body.String(), "broken") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// A schedule of minutes that fails tries again at its next time, not at once.
func TestFailingSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeStore{}
		s.fails.Store(true)
		k := &Keeper{Store: s, Dir: t.TempDir(), Every: time.Minute, Keep: 1, Log: slog.New(slog.DiscardHandler)}
		go k.Run(t.Context())
		time.Sleep(time.Hour + time.Second)
		synctest.Wait()
		if n := s.tries.Load(); n < 30 || n > 60 {
			t.Errorf("tried %d times in an hour", n)
		}
	})
}
