package upgrade

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWaves(t *testing.T) {
	for _, c := range []struct {
		name  string
		nodes []Member
		want  [][]string
	}{
		{"none", nil, nil},
		{"coordinators first, each alone, though they share a zone",
			[]Member{{"a", "z", false}, {"c2", "z", true}, {"c1", "z", true}, {"b", "z", false}},
			[][]string{{"c1"}, {"c2"}, {"a", "b"}}},
		{"zone by zone", []Member{{"b2", "b", false}, {"a1", "a", false}, {"b1", "b", false}, {"a2", "a", false}},
			[][]string{{"a1", "a2"}, {"b1", "b2"}}},
		{"without a zone each alone, before the zones", []Member{{"y", "", false}, {"x", "", false}, {"a", "a", false}},
			[][]string{{"x"}, {"y"}, {"a"}}},
		{"a coordinator without a zone", []Member{{"x", "", false}, {"c", "", true}}, [][]string{{"c"}, {"x"}}},
	} {
		if diff := cmp.Diff(c.want, Waves(c.nodes)); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
}

const goodWish = `{"id":"a-1","digest":"` + "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" +
	`","format":"deb","version":"1.36.4+x"}`

func TestParseWish(t *testing.T) {
	if w, err := ParseWish(""); w != nil || err != nil {
		t.Errorf("of nothing: %v, %v", w, err)
	}
	if w, err := ParseWish(goodWish); err != nil || w.ID != "a-1" || w.Format != Deb || w.Version != "1.36.4+x" {
		t.Errorf("%+v, %v", w, err)
	}
	for _, c := range []struct{ from, to, why string }{
		{`"a-1"`, `""`, "id"},
		{`"a-1"`, `"../x"`, "id"},
		{"0123", "012g", "digest"},
		{"0123", "", "digest"},
		{`"deb"`, `"tar"`, "format"},
		{"1.36.4", "1.36", "version"},
		{"{", "", "JSON"},
		{"a-1", strings.Repeat("a", maxWish), "long"},
	} {
		w, err := ParseWish(strings.Replace(goodWish, c.from, c.to, 1))
		if err == nil || w != nil || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%q for %q: %v, %v", c.to, c.from, w, err)
		}
	}
}

// FuzzParseWish: others write it.
func FuzzParseWish(f *testing.F) {
	f.Add(goodWish)
	f.Add(`{"id":"../../etc","digest":"","format":"deb","version":"v1.2.3"}`)
	f.Add(`[]`)
	f.Fuzz(func(t *testing.T, text string) {
		w, err := ParseWish(text)
		if w == nil {
			return
		}
		if err != nil || strings.ContainsAny(w.ID+w.Digest+w.Format, "/.\x00\n ") || len(w.Digest) != 64 {
			t.Errorf("%q: %+v, %v", text, w, err)
		}
	})
}

func TestResult(t *testing.T) {
	r := Result{ID: strings.Repeat("a", 64), Phase: Returned, Why: strings.Repeat("\x1b", 2*maxWhy)}
	back := ParseResult(r.Text())
	if back.ID != r.ID || back.Phase != Returned || len(back.Why) > maxWhy+4 {
		t.Errorf("%+v", back)
	}
	if got := ParseResult("{"); got != (Result{}) {
		t.Errorf("%+v", got)
	}
}
