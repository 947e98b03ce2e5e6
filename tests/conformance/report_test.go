package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const report = `[{"SpecReports":[
{"ContainerHierarchyTexts":["[sig-node] Pods"],"LeafNodeType":"It","LeafNodeText":"run [Conformance]","State":"passed","RunTime":2600000000},
{"ContainerHierarchyTexts":["[sig-apps] Job"],"LeafNodeType":"It","LeafNodeText":"ends [Conformance]","State":"failed","Failure":{"Message":"no job"}},
{"ContainerHierarchyTexts":["[sig-apps] Job"],"LeafNodeType":"It","LeafNodeText":"out of focus","State":"skipped"},
{"ContainerHierarchyTexts":["[sig-apps] Job"],"LeafNodeType":"It","LeafNodeText":"wants more","State":"skipped","Failure":{"Message":"needs 3 nodes"}},
{"ContainerHierarchyTexts":["[sig-apps] Job"],"LeafNodeType":"It","LeafNodeText":"cut off","State":"interrupted"},
{"LeafNodeType":"SynchronizedBeforeSuite","State":"passed"}]}]`

func TestReport(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.json")
	if err := os.WriteFile(file, []byte(report), 0o600); err != nil {
		t.Fatal(err)
	}
	ran, err := readReport(file)
	if err != nil {
		t.Fatal(err)
	}
	want := record{
		"[sig-node] Pods run [Conformance]": {state: passed, seconds: 3},
		"[sig-apps] Job ends [Conformance]": {state: failed, message: "no job"},
		"[sig-apps] Job wants more":         {state: skip, message: "needs 3 nodes"},
	}
	if !maps.Equal(ran, want) {
		t.Errorf("ran %+v", ran)
	}
	if err := allPassed([]string{"[sig-node] Pods run [Conformance]"}, ran); err != nil {
		t.Error(err)
	}
	if err := allPassed([]string{"[sig-apps] Job cut off"}, ran); err == nil || !strings.Contains(err.Error(), "not-run: [sig-apps] Job cut off") {
		t.Errorf("a spec that did not run: %v", err)
	}
}

func TestRecord(t *testing.T) {
	old := record{"[sig-node] a": {state: passed, seconds: 1}, "[sig-node] gone": {state: passed}}
	ran := record{"[sig-node] a": {state: failed, seconds: 4, message: "why"}}
	if got, want := changes(old, ran), "pass -> fail: [sig-node] a\n"; got != want {
		t.Errorf("changes %q, want %q", got, want)
	}
	merged := merge([]spec{{name: "[sig-node] a"}, {name: "[sig-cli] b"}}, old, ran)
	file := filepath.Join(t.TempDir(), "results.txt")
	if err := merged.write(file); err != nil {
		t.Fatal(err)
	}
	again, err := readRecord(file)
	if err != nil {
		t.Fatal(err)
	}
	if want := (record{"[sig-node] a": {state: failed, seconds: 4}, "[sig-cli] b": {state: notRun}}); !maps.Equal(again,
		want) {
		t.Errorf("record %+v", again)
	}
	if table := merged.table(); !strings.Contains(table, "| sig-node | 0 | 1 | 0 | 0 |\n| all | 0 | 1 | 0 | 1 |\n") {
		t.Errorf("table\n%s", table)
	}
}

func TestChosen(t *testing.T) {
	specs := []spec{{name: "[sig-node] a"}, {name: "[sig-node] b"}, {name: "[sig-node] c"}, {name: "[sig-cli] d"}}
	old := record{"[sig-node] a": {state: passed}, "[sig-node] b": {state: failed}}
	for _, c := range []struct {
		name string
		o    options
		want []string // none for all
		err  string
	}{
		{"all", options{focus: "sig-node"}, nil, ""},
		{"missing", options{missing: true}, []string{"[sig-node] c", "[sig-cli] d"}, ""},
		{"missing of a focus", options{missing: true, focus: "^.sig-node"}, []string{"[sig-node] c"}, ""},
		{"both of a focus", options{failed: true, missing: true, focus: "node"},
			[]string{"[sig-node] b", "[sig-node] c"}, ""},
		{"none", options{failed: true, focus: "cli"}, nil, "nothing to run"},
		{"bad focus", options{failed: true, focus: "("}, nil, "-focus"},
	} {
		got, err := c.o.chosen(specs, old)
		if !slices.Equal(got, c.want) || c.err == "" && err != nil ||
			c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %q, %v", c.name, got, err)
		}
	}
}
