package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A watch is read up to the event that ends it, or to its end, without what each
// server makes itself.
func TestReadEvents(t *testing.T) {
	event := func(kind, name string) string {
		return fmt.Sprintf(`{"type":%q,"object":{"metadata":{"name":%q,"uid":"1"}}}`, kind, name)
	}
	short := func(kind, name string) any {
		return map[string]any{"type": kind, "object": map[string]any{"metadata": map[string]any{"name": name,
			"managedFields": map[string]any{}}}}
	}
	all := event("ADDED", "a") + event("DELETED", "b") + event("DELETED", "a") + event("DELETED", "a") +
		`{"type":"ERROR","object":{"message":"too old: 12 (345)"}}`
	failed := map[string]any{"type": "ERROR", "object": map[string]any{"message": "too old: 0 (0)"}}
	for name, tc := range map[string]struct {
		w    watching
		want []any
	}{
		"the first": {watching{event: "DELETED"}, []any{short("ADDED", "a"), short("DELETED", "b")}},
		"the first of a name": {watching{event: "DELETED", of: "a"}, []any{short("ADDED", "a"), short("DELETED", "b"),
			short("DELETED", "a")}},
		"the second of a name": {watching{event: "DELETED", of: "a", nth: 2}, []any{short("ADDED", "a"),
			short("DELETED", "b"), short("DELETED", "a"), short("DELETED", "a")}},
		"the end": {watching{}, []any{short("ADDED", "a"), short("DELETED", "b"), short("DELETED", "a"),
			short("DELETED", "a"), failed, "end"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := readEvents(json.NewDecoder(strings.NewReader(all)), tc.w)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A list is read page by page; its versions are compared with the one that is known.
func TestWalk(t *testing.T) {
	answers := map[string]string{
		"limit=2&resourceVersion=7": `{"kind":"SecretList","metadata":{"resourceVersion":"7","continue":"x",
			"remainingItemCount":1},"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}]}`,
		"continue=x&limit=2": `{"kind":"SecretList","metadata":{"resourceVersion":"8"},
			"items":[{"metadata":{"name":"c"}}]}`,
	}
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, ok := answers[r.URL.RawQuery]; ok {
			_, _ = fmt.Fprint(w, body)
			return
		}
		w.WriteHeader(http.StatusBadRequest)
		_, _ = fmt.Fprint(w, `{"kind":"Status","reason":"BadRequest","message":"limit 12 is bad"}`)
	}))
	defer h.Close()
	s := &server{name: "test", base: h.URL, client: h.Client()}
	changed := 0
	got, err := s.walk(context.Background(), "/", "limit=2&resourceVersion=VERSION", "7", "", func() error {
		changed++
		return nil
	})
	want := []any{
		map[string]any{"kind": "SecretList", "resourceVersion": "the version", "continue": "there is more",
			"remainingItemCount": 1.0, "names": []any{"a", "b"}, "columns": nil},
		map[string]any{"kind": "SecretList", "resourceVersion": "another version", "names": []any{"c"}, "columns": nil},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" || changed != 1 {
		t.Errorf("%v, %d changes %s", err, changed, diff)
	}
	got, err = s.walk(context.Background(), "/", "limit=x", "7", "", nil)
	want = []any{map[string]any{"code": 400, "reason": "BadRequest", "message": "limit 0 is bad"}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
}

// What is asked for is told in few words.
func TestAttributes(t *testing.T) {
	for text, want := range map[string]string{
		"get /healthz": `{"nonResourceAttributes":{"path":"/healthz","verb":"get"}}`,
		"list pods":    `{"resourceAttributes":{"group":"","resource":"pods","verb":"list"}}`,
		"create a:pods/binding b": `{"resourceAttributes":{"group":"","name":"b","namespace":"a","resource":"pods",` +
			`"subresource":"binding","verb":"create"}}`,
		"update deployments.apps/scale": `{"resourceAttributes":{"group":"apps","resource":"deployments",` +
			`"subresource":"scale","verb":"update"}}`,
	} {
		if got := string(encode(attributes(text))); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	for _, access := range accesses {
		if len(strings.Fields(access)) < 2 {
			t.Errorf("%q asks for nothing", access)
		}
	}
}

// Requests of other users are not the administrator's, on a tape too.
func TestKeyOfUser(t *testing.T) {
	keys := map[string]bool{}
	for _, as := range []*subject{nil, {Name: "a"}, {Name: "a", Groups: []string{"b"}}, {Name: "b"}} {
		keys[request{Method: "GET", Path: "/", as: as}.key()] = true
	}
	if len(keys) != 4 {
		t.Errorf("%d keys of 4 users", len(keys))
	}
}

// A scenario's answer is recorded and played as one.
func TestPlay(t *testing.T) {
	sc := scenario{name: "a", run: func(context.Context, *server) (map[string]any, error) {
		return map[string]any{"part": 1}, nil
	}}
	made := &tape{answers: map[string]recorded{}}
	req := request{Method: "PLAY", Path: sc.name}
	first, err := (&server{tape: made}).play(context.Background(), sc, req)
	if err != nil {
		t.Fatal(err)
	}
	made.playing, sc.run = true, nil
	again, err := (&server{tape: made}).play(context.Background(), sc, req)
	if diff := cmp.Diff(first, again); err != nil || diff != "" || string(again.Body) != `{"part":1}` {
		t.Errorf("%v %s %s", err, again.Body, diff)
	}
}
