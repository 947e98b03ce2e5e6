package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestResults(t *testing.T) {
	all := newResults()
	for run, text := range map[string]string{
		"a": `[{"SpecReports":[
			{"LeafNodeType":"BeforeSuite","State":"passed"},
			{"ContainerHierarchyTexts":["Node"],"LeafNodeType":"It","LeafNodeText":"works","State":"passed"},
			{"ContainerHierarchyTexts":["Node"],"LeafNodeType":"It","LeafNodeText":"copies","State":"skipped",
				"Failure":{"Message":"no copies"}},
			{"LeafNodeType":"It","LeafNodeText":"out of focus","State":"skipped"}]}]`,
		"b": `[{"SpecReports":[
			{"ContainerHierarchyTexts":["Node"],"LeafNodeType":"It","LeafNodeText":"works","State":"passed"},
			{"ContainerHierarchyTexts":["Node"],"LeafNodeType":"It","LeafNodeText":"copies","State":"failed"}]}]`,
	} {
		file := filepath.Join(t.TempDir(), "report.json")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := all.add(run, file); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(t.TempDir(), "report.json")
	if err := os.WriteFile(file, []byte("[]"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := newResults().add("c", file); err == nil {
		t.Error("a run of nothing is taken for one that passed")
	}
	want := []string{"Node copies: failed on b", "Node copies: skipped (no copies) on a", "Node works: passed"}
	if got := all.lines()[1:]; !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}
