package main

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// podKind is pods as discovery would give them, with a live object.
func podKind(t *testing.T) *kind {
	t.Helper()
	seeds, err := readSeeds()
	if err != nil {
		t.Fatal(err)
	}
	gv := schema.GroupVersion{Version: "v1"}
	object, err := types().New(gv.WithKind("Pod"))
	if err != nil {
		t.Fatal(err)
	}
	k := &kind{gv: gv, APIResource: metav1.APIResource{Name: "pods", Kind: "Pod", Namespaced: true,
		Verbs: []string{"create", "get", "update", "patch", "delete", "list"}},
		subresources: []string{"status", "eviction", "binding"}, goType: reflect.TypeOf(object).Elem(),
		seeds: seeds[gv.WithKind("Pod")], weight: 1}
	k.live = []*liveObject{{name: "seed", object: k.seeds[0]}}
	return k
}

// Every seed has the form of its Go type: nothing in it is unknown or of a wrong
// type.
func TestSeedsAreOfTheirTypes(t *testing.T) {
	seeds, err := readSeeds()
	if err != nil {
		t.Fatal(err)
	}
	scheme := types()
	for gvk, list := range seeds {
		for _, seed := range list {
			object, err := scheme.New(gvk)
			if err != nil {
				t.Fatal(err)
			}
			d := json.NewDecoder(strings.NewReader(string(encode(seed))))
			d.DisallowUnknownFields()
			if err := d.Decode(object); err != nil {
				t.Errorf("%s: %v", gvk, err)
			}
		}
	}
}

// The same seed and number give the same request, and the requests of some
// numbers are of every class. Nothing that is sent changes what is stored.
func TestRequests(t *testing.T) {
	ks := []*kind{podKind(t)}
	before := string(encode(ks[0].seeds))
	what := map[string]int{}
	for i := range 2000 {
		req, ok := makeRequest(7, i, ks)
		if i < 100 {
			again, _ := makeRequest(7, i, ks)
			if diff := cmp.Diff(req, again, cmp.AllowUnexported(request{})); diff != "" {
				t.Fatalf("request %d is another the second time: %s", i, diff)
			}
		}
		if !ok {
			continue
		}
		what[req.What]++
		if req.Method == "GET" {
			continue
		}
		if !strings.Contains(req.Path, "dryRun=All") {
			t.Errorf("request %d is no dry run: %s", i, req.Path)
		}
		if req.Method == "DELETE" && len(req.Body) > 0 && !strings.Contains(string(req.Body), `"dryRun":["All"]`) {
			t.Errorf("request %d deletes: %s", i, req.Body)
		}
	}
	for _, w := range []string{"create", "update", "update status", "merge patch", "JSON patch", "strategic patch",
		"apply", "apply status", "delete", "list", "eviction", "binding", "options"} {
		if what[w] == 0 {
			t.Errorf("no request of class %q: %v", w, what)
		}
	}
	if after := string(encode(ks[0].seeds)); after != before {
		t.Error("mutations changed a seed")
	}
}

// The places of an object are those that are set and those that its Go type has
// beside them.
func TestSpots(t *testing.T) {
	k := podKind(t)
	k.seeds = []map[string]any{{"metadata": map[string]any{"name": "a"},
		"spec": map[string]any{"containers": []any{map[string]any{"name": "c"}}}}}
	got := map[string]bool{}
	for _, s := range k.spots(k.seeds[0], false) {
		got[pathText(s.path)] = s.present
	}
	for path, present := range map[string]bool{"metadata.name": true, "spec.containers[0].name": true,
		"spec.containers":                  true,
		"spec.containers[0].livenessProbe": false, "spec.nodeName": false, "metadata.labels": false} {
		if p, ok := got[path]; !ok || p != present {
			t.Errorf("%s: found %t, present %t; want present %t", path, ok, p, present)
		}
	}
	if _, ok := got["status.phase"]; ok {
		t.Error("the status is a place of an object that is no status")
	}
}

func TestApplyLeavesTheOldObject(t *testing.T) {
	old := map[string]any{"a": []any{map[string]any{"b": "c"}, "d"}}
	for _, tc := range []struct {
		e    edit
		want string
	}{
		{edit{path: []any{"a", 0, "b"}, value: 1}, `{"a":[{"b":1},"d"]}`},
		{edit{path: []any{"a", 0}, remove: true}, `{"a":["d"]}`},
		{edit{path: []any{"a", 0, "b"}, remove: true}, `{"a":[{},"d"]}`},
		{edit{path: []any{"x", "y"}, value: nil}, `{"a":[{"b":"c"},"d"],"x":{"y":null}}`},
	} {
		if got := string(encode(apply(old, tc.e.path, tc.e))); got != tc.want {
			t.Errorf("%v: %s, want %s", tc.e, got, tc.want)
		}
		if got := string(encode(old)); got != `{"a":[{"b":"c"},"d"]}` {
			t.Fatalf("%v changed the old object: %s", tc.e, got)
		}
	}
}

// What a change generates can always be sent.
func TestChangesAreJSON(t *testing.T) {
	k := podKind(t)
	r := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		o, _, how := k.mutate(r, k.seeds[0], false)
		if _, err := json.Marshal(o); err != nil {
			t.Fatalf("%s: %v", how, err)
		}
	}
}

func TestCompare(t *testing.T) {
	status := func(code int, causes string) answer {
		body := `{"kind":"Status","reason":"Invalid","message":"m","details":{"causes":[` + causes + `]}}`
		return answer{Code: code, Body: []byte(body)}
	}
	worded := func(causes, message string) answer {
		a := status(422, causes)
		a.Body = []byte(strings.Replace(string(a.Body), `"m"`, `"`+message+`"`, 1))
		return a
	}
	ok := func(body string) answer { return answer{Code: 200, Body: []byte(body)} }
	owner := func(how, fields string) string {
		return `{"manager":"apidiff","operation":"` + how + `","apiVersion":"v1","time":"` + how +
			`","fieldsV1":{"f:spec":{` + fields + `}}}`
	}
	const one = `{"reason":"FieldValueInvalid","field":"spec.template.spec.containers[0].name","message":"Invalid value: \"x1\": bad"}`
	const two = `{"reason":"FieldValueInvalid","field":"spec.replicas","message":"Invalid value: -1: bad"}`
	const three = `{"reason":"FieldValueRequired","field":"spec.replicas","message":"Required value"}`
	for name, tc := range map[string]struct {
		what     string
		body     string
		up, here answer
		ignore   map[string]bool
		want     []string
	}{
		"alike": {up: ok(`{"metadata":{"uid":"1","name":"a"},"spec":{"a":[1]}}`),
			here: ok(`{"metadata":{"uid":"2","name":"a"},"spec":{"a":[1]}}`)},
		"a value": {up: ok(`{"spec":{"a":[1]}}`), here: ok(`{"spec":{"a":[2]}}`),
			want: []string{"object spec.a[]: upstream 0, here 0"}},
		"stored otherwise before": {up: ok(`{"spec":{"a":[1]}}`), here: ok(`{"spec":{"a":[2]}}`),
			ignore: map[string]bool{"spec": true}},
		"a status that is not asked for": {what: "update", up: ok(`{"status":{"a":1}}`), here: ok(`{"status":{}}`)},
		"a status that is": {what: "update status", up: ok(`{"status":{"a":1}}`), here: ok(`{"status":{}}`),
			want: []string{"object status.a: absent here, upstream 0"}},
		"an age": {up: ok(`{"rows":[{"cells":["3s"]}]}`), here: ok(`{"rows":[{"cells":["1m2s"]}]}`)},
		"accepted": {up: status(422, one), here: ok(`{}`),
			want: []string{"accepted here, upstream 422: {pod}.containers[].name: Invalid value: \"_\": bad (FieldValueInvalid)"}},
		"refused": {up: ok(`{}`), here: status(422, two),
			want: []string{"refused here with 422, accepted upstream: spec.replicas: Invalid value: -0: bad (FieldValueInvalid)"}},
		"a cause is missing": {up: status(422, one+","+two), here: status(422, one),
			want: []string{"cause missing here: spec.replicas: Invalid value: -0: bad (FieldValueInvalid)"}},
		"same causes": {up: status(422, one), here: status(422, one)},
		"another order": {up: worded(one+","+two, "x is invalid: [a, b]"), here: worded(two+","+one, "x is invalid: [b, a]"),
			want: []string{"order of the causes: upstream {pod}.containers[].name first, here spec.replicas"}},
		"another order at a place": {up: worded(two+","+three, "x is invalid: [a, b]"),
			here: worded(three+","+two, "x is invalid: [b, a]"),
			want: []string{"order of the causes at spec.replicas: upstream \"Invalid value: -0: bad\", " +
				"here \"Required value\""}},
		"a map's entries in another order": {
			up: worded(`{"field":"metadata.labels","message":"a"},{"field":"metadata.labels","message":"b"}`,
				"x is invalid: [a, b]"),
			here: worded(`{"field":"metadata.labels","message":"b"},{"field":"metadata.labels","message":"a"}`,
				"x is invalid: [b, a]")},
		"a difference of two objects is shown": {
			up: worded(one+`,{"field":"spec","message":"Forbidden: immutable\n+ a"}`,
				"x is invalid: [a, spec: Forbidden: immutable\\n+ a]"),
			here: worded(one+`,{"field":"spec","message":"Forbidden: immutable"}`,
				"x is invalid: [a, spec: Forbidden: immutable]")},
		"a place in a list that differs before": {
			up:     status(422, `{"field":"status.conditions[0].status","message":"bad"}`),
			here:   status(422, `{"field":"status.conditions[1].status","message":"bad"}`),
			ignore: map[string]bool{"status.conditions[]": true}},
		"a place in a list that differs before, and in the message": {
			up: worded(`{"field":"status.conditions[0].status","message":"bad"}`, "status.conditions[0].status: bad"),
			here: worded(`{"field":"status.conditions[1].status","message":"bad"}`,
				"status.conditions[1].status: bad"),
			ignore: map[string]bool{"status.conditions[]": true}},
		"a generated name": {body: `{"metadata":{"generateName":"A"}}`,
			up:   answer{Code: 422, Body: []byte(`{"kind":"Status","message":"Ab is bad","details":{"name":"Ab"}}`)},
			here: answer{Code: 422, Body: []byte(`{"kind":"Status","message":"Ac is bad","details":{"name":"Ac"}}`)}},
		"a patch of what is there on one side": {what: "JSON patch status", up: status(422, one), here: ok(`{}`),
			body:   `[{"op":"add","path":"/status/conditions/0/status","value":"x"}]`,
			ignore: map[string]bool{"status.conditions": true}},
		"a patch beside it": {what: "JSON patch status", up: status(422, two), here: ok(`{}`),
			body:   `[{"op":"add","path":"/status/conditionsOf","value":"x"}]`,
			ignore: map[string]bool{"status.conditions": true},
			want:   []string{"accepted here, upstream 422: spec.replicas: Invalid value: -0: bad (FieldValueInvalid)"}},
		"a warning": {up: answer{Code: 200, Body: []byte(`{}`), Warnings: []string{"spec.template.spec.x: old"}},
			here: ok(`{}`),
			want: []string{"warning missing here: {pod}.x: old"}},
		"no answer": {up: ok(`{}`), here: answer{Body: []byte("connection: EOF")},
			want: []string{"no answer here: connection: EOF"}},
		"no answer upstream": {up: answer{Body: []byte("connection: EOF")}, here: ok(`{}`),
			want: []string{"no answer upstream, here 200: connection: EOF"}},
		"managed fields": {
			up: ok(`{"metadata":{"managedFields":[` +
				owner("Apply", `"f:a":{"k:{\"n\":\"1\"}":{".":{},"f:n":{}}}`) + `]}}`),
			here: ok(`{"metadata":{"managedFields":[{"manager":"kubelet"},` +
				owner("Apply", `"f:a":{"k:{\"n\":\"1\"}":{"f:n":{},"f:o":{}}}`) + `]}}`),
			want: []string{"object managed fields by Apply in v1: spec.a[]: absent here, upstream true",
				"object managed fields by Apply in v1: spec.a[].o: absent upstream, here true"}},
		"managed fields in another order": {
			up: ok(`{"metadata":{"managedFields":[` + owner("Apply", `"f:a":{}`) + `,` +
				owner("Update", `"f:b":{}`) + `]}}`),
			here: ok(`{"metadata":{"managedFields":[` + owner("Update", `"f:b":{}`) + `,` + owner("Apply", `"f:a":{}`) +
				`]}}`)},
		"managed fields of what differs before": {
			ignore: map[string]bool{"spec.a[].at": true, "spec.c": true},
			up: ok(`{"metadata":{"managedFields":[` +
				owner("Update", `"f:a":{},"f:c":{"f:d":{}},"f:e":{}`) + `]}}`),
			here: ok(`{"metadata":{}}`),
			want: []string{"object managed fields by Update in v1: spec.e: absent here, upstream true"}},
		"another kind": {what: "delete", up: ok(`{"kind":"Pod"}`), here: ok(`{"kind":"Status"}`),
			want: []string{"answer to delete: upstream the object, here Status"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, f := range compare(request{What: tc.what, Body: []byte(tc.body), ignore: tc.ignore}, tc.up, tc.here) {
				got = append(got, f.text)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A cause is kept once with its smallest request, and an accepted one is not open.
func TestReport(t *testing.T) {
	file := filepath.Join(t.TempDir(), "accepted.txt")
	if err := os.WriteFile(file, []byte("# why\nconfigmaps: .*spec\\.b.* -> for a reason\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	accepted, err := readAccepted(file)
	if err != nil {
		t.Fatal(err)
	}
	r := newReport(accepted)
	for _, body := range []string{"long request", "short"} {
		r.judge(request{Kind: "configmaps", Body: []byte(body)}, answer{Code: 200,
			Body: []byte(`{"spec":{"a":1,"b":1}}`)},
			answer{Code: 200, Body: []byte(`{"spec":{"a":2,"b":2}}`)})
	}
	list := r.sorted()
	if len(list) != 2 || r.open() != 1 {
		t.Fatalf("%d causes, %d open; want 2 and 1", len(list), r.open())
	}
	if list[0].count != 2 || string(list[0].example.Body) != "short" {
		t.Errorf("count %d, example %s", list[0].count, list[0].example.Body)
	}
	if err := os.WriteFile(file, []byte("a pattern without its reason\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readAccepted(file); err == nil {
		t.Error("a pattern without a reason is taken")
	}
}

// The file that is in use can be read.
func TestAcceptedFile(t *testing.T) {
	if _, err := readAccepted("accepted.txt"); err != nil {
		t.Error(err)
	}
}

// What two servers have stored at different times was written by each.
func TestTimesDiffer(t *testing.T) {
	at := func(when, created string) map[string]any {
		return map[string]any{"metadata": map[string]any{"creationTimestamp": created},
			"status": map[string]any{"conditions": []any{map[string]any{"lastTransitionTime": when, "type": "A"}}}}
	}
	const one, two = "2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z"
	if got := timesDiffer("", at(one, one), at(one, two)); len(got) > 0 {
		t.Errorf("times of the metadata count: %v", got)
	}
	got := timesDiffer("", at(one, one), at(two, one))
	if !got["status.conditions[].lastTransitionTime"] || len(got) != 1 {
		t.Errorf("a condition's time: %v", got)
	}
}

// Each path that one server lists alone is a cause.
func TestComparePaths(t *testing.T) {
	r := request{What: "surface", Kind: "/"}
	up := answer{Code: 200, Body: []byte(`{"paths":["/a","/b","/c"]}`)}
	here := answer{Code: 200, Body: []byte(`{"paths":["/b","/d"]}`)}
	var got []string
	for _, f := range compare(r, up, here) {
		got = append(got, f.text)
	}
	want := []string{"path missing here: /a", "path missing here: /c", "path only here: /d"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
