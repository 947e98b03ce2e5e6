package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What is recorded is answered again, after it was written and read, and nothing else is.
func TestTape(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tape")
	made := &tape{Seed: 3, N: 7, answers: map[string]recorded{}}
	req := request{Method: "POST", Path: "/b", Type: "application/json", Body: []byte(`{"a":1}`)}
	want := answer{Code: 201, Warnings: []string{"old"}, Body: []byte(`{"kind":"Pod"}`)}
	for _, keep := range []struct {
		req request
		a   answer
	}{
		{req, want},
		{request{Method: "GET", Path: "/openapi/v2"}, answer{Code: 200, Body: []byte(
			`{"definitions":{"a":{"required":["x"],"properties":{"x":{"type":"string"},"y":{"enum":["1"]}}},"b":{}}}`)}},
		{request{Method: "GET", Path: "/openapi/v3/apis"}, answer{Code: 200, Body: []byte("long")}},
	} {
		if err := made.keep(keep.req, keep.a); err != nil {
			t.Fatal(err)
		}
	}
	if err := made.write(file); err != nil {
		t.Fatal(err)
	}
	read, err := readTape(file)
	if err != nil {
		t.Fatal(err)
	}
	if read.Seed != 3 || read.N != 7 || len(read.answers) != 2 {
		t.Errorf("read seed %d, N %d, %d answers", read.Seed, read.N, len(read.answers))
	}
	s := &server{tape: read}
	got, err := s.do(context.Background(), req)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	got, err = s.do(context.Background(), request{Method: "GET", Path: "/openapi/v2"})
	if err != nil || string(got.Body) != `{"definitions":{"a":{"required":["x"],"properties":{"y":{"enum":["1"]}}}}}` {
		t.Errorf("definitions: %v %s", err, got.Body)
	}
	req.Body = []byte(`{"a":2}`)
	if _, err := s.do(context.Background(), req); err == nil || !strings.Contains(err.Error(), "-record") {
		t.Errorf("a request that is not recorded: %v", err)
	}
	if err := os.WriteFile(file, []byte("no tape"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readTape(file); err == nil {
		t.Error("a file that is no tape is read")
	}
}

// The tape in use can be read.
func TestTapeFile(t *testing.T) {
	read, err := readTape(filepath.Base(tapeFile))
	if err != nil {
		t.Fatal(err)
	}
	if read.N == 0 || len(read.answers) < read.N {
		t.Errorf("%d answers to %d requests", len(read.answers), read.N)
	}
}

// A cause that is known to be open fails nothing, a new one does, and one that is
// closed may stay in the file.
func TestJudgeOpen(t *testing.T) {
	file := filepath.Join(t.TempDir(), "open.txt")
	differing := func(fields ...string) *report {
		r := newReport(nil)
		for _, f := range fields {
			r.judge(request{Kind: "configmaps"}, answer{Code: 200, Body: []byte(`{"` + f + `":1}`)},
				answer{Code: 200, Body: []byte(`{"` + f + `":2}`)})
		}
		return r
	}
	if err := differing("a", "b").writeOpen(file); err != nil {
		t.Fatal(err)
	}
	if err := differing("a").judgeOpen(file, "out"); err != nil {
		t.Errorf("a known cause: %v", err)
	}
	err := differing("a", "c").judgeOpen(file, "out")
	if err == nil || !strings.Contains(err.Error(), "object c:") || strings.Contains(err.Error(), "object a:") {
		t.Errorf("a new cause: %v", err)
	}
}

// Texts that differ by chance, or by what a server makes itself, are alike.
func TestClean(t *testing.T) {
	for name, tc := range map[string][2]string{
		"values in another order": {`Unsupported value: "x": supported values: "A", "B"`,
			`Unsupported value: "x": supported values: "B", "A"`},
		"an object in a patch": {
			`patch: Invalid value: "{\"uid\":\"1\"}": bad`, `patch: Invalid value: "{\"uid\":\"2\"}": bad`},
		"an applied object": {"failed to create typed patch object (a; v1, Kind=B): errors:\n  .b: x\n  .a: y",
			"failed to create typed patch object (a; v1, Kind=B): errors:\n  .a: y\n  .b: x"},
		"a version": {
			`strconv.ParseUint: parsing "206x": invalid`, `strconv.ParseUint: parsing "2631x": invalid`},
		"a record's version": {
			"does not match the ResourceVersion in record (7)",
			"does not match the ResourceVersion in record (9)"},
		"a difference of two objects": {
			"FieldValueForbidden\x00spec\x00Forbidden: may not\nA",
			"FieldValueForbidden\x00spec\x00Forbidden: may not\nb"},
		"a binding of several": {`RBAC: allowed by ClusterRoleBinding "a" of ClusterRole "b" to Group "c"`,
			`RBAC: allowed by ClusterRoleBinding "d" of ClusterRole "e" to Group "f"`},
	} {
		if a, b := clean(tc[0]), clean(tc[1]); a != b {
			t.Errorf("%s: %q and %q", name, a, b)
		}
	}
	if clean(`supported values: "A", "B"`) == clean(`supported values: "A", "C"`) {
		t.Error("other supported values are alike")
	}
}
