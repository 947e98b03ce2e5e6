package main

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	r := newRecorder()
	for round, v := range []float64{1, 2} {
		r.begin(shoalName, round)
		r.cost("start", "s", v)
		r.rate("reads", "1/s", 100)
		r.detail("idle", weights{"shoal-agent": 30})
		r.begin(peerName, round)
		r.cost("start", "s", 4)
		r.rate("reads", "1/s", 50)
		r.detail("idle", weights{"kubelet": 1234.5})
	}
	text := r.table()
	for _, want := range []string{
		"| start | s | 1.5 (1..2) | 4 (4..4) | 3 (2..4) |\n",
		"| reads | 1/s | 100 (100..100) | 50 (50..50) | 2 (2..2) |\n",
		"| idle: kubelet |  | 1234 (1234..1234) |\n| idle: shoal-agent | 30 (30..30) |  |\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no line %q in\n%s", want, text)
		}
	}
}

func TestOneSystemHasNoRatio(t *testing.T) {
	r := newRecorder()
	r.begin(peerName, 0)
	r.cost("start", "s", 4)
	if want := "| start | s |  | 4 |  |\n"; !strings.Contains(r.table(), want) {
		t.Errorf("no line %q in\n%s", want, r.table())
	}
}

func TestAdd(t *testing.T) {
	file := filepath.Join(t.TempDir(), "results.json")
	first := newRecorder()
	first.begin(shoalName, 0)
	first.cost("start", "s", 1)
	first.cost("end", "s", 7)
	first.begin(shoalName, 1)
	first.cost("start", "s", 2)
	if err := first.save(file); err != nil {
		t.Fatal(err)
	}
	second := newRecorder()
	if err := second.load(file); err != nil {
		t.Fatal(err)
	}
	second.begin(shoalName, 0)
	second.step = -1 // earlier steps stand first
	second.cost("before", "s", 3)
	second.step = 0
	second.cost("start", "s", 5)
	for _, want := range []string{"| before | s | 3 |  |  |\n| start | s | 5 |  |  |\n| end | s | 7 |  |  |\n", "1 of the lines are of earlier runs, since "} {
		if !strings.Contains(second.table(), want) {
			t.Errorf("no line %q in\n%s", want, second.table())
		}
	}
	if err := newRecorder().load(file + ".none"); err != nil {
		t.Errorf("no earlier run: %v", err)
	}
}

func TestChosen(t *testing.T) {
	all, err := chosen("")
	if err != nil || len(all) != len(steps()) {
		t.Errorf("all steps: %v, %v", all, err)
	}
	some, err := chosen("idle,api")
	if err != nil || len(some) != 2 || some[1].name != "api" {
		t.Errorf("two steps: %v, %v", some, err)
	}
	if _, err := chosen("idle,nothing"); err == nil {
		t.Error("a step that is none was taken")
	}
}

func TestParts(t *testing.T) {
	control, node := weights{"etcd": 1, "kube-apiserver": 2, "kubelet": 4, "pause": 8}.parts()
	if control != 3 || node != 12 {
		t.Errorf("control plane %v, node %v", control, node)
	}
}
