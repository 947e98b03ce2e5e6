package framework

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/yaml"
)

// TestPods reads the pods of testdata/pods.txt: the lines that begin with "= " are
// what scheduling needs of the pod above them.
func TestPods(t *testing.T) {
	text, err := os.ReadFile("testdata/pods.txt")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, block := range strings.SplitAfter(string(text), "\n\n") {
		var body strings.Builder
		for line := range strings.Lines(block) {
			if !strings.HasPrefix(line, "= ") && line != "\n" {
				body.WriteString(line)
			}
		}
		out.WriteString(body.String())
		var pod corev1.Pod
		if err := yaml.UnmarshalStrict([]byte(body.String()), &pod); err != nil {
			t.Fatalf("%s: %v", body.String(), err)
		}
		for _, line := range needs(&pod) {
			out.WriteString("= " + line + "\n")
		}
		if strings.HasSuffix(block, "\n\n") {
			out.WriteString("\n")
		}
	}
	if out.String() != string(text) {
		t.Errorf("they need:\n%s", out.String())
	}
}

func needs(pod *corev1.Pod) (lines []string) {
	p, err := NewPodInfo(pod)
	if err != nil {
		lines = append(lines, "error: "+err.Error())
	}
	if p.Priority != 0 {
		lines = append(lines, fmt.Sprint("priority ", p.Priority))
	}
	lines = append(lines, "requests "+amounts(&p.Requests), "counts for "+amounts(&p.NonZero))
	for _, h := range p.HostPorts {
		lines = append(lines, fmt.Sprintf("port %s %s:%d", h.Protocol, h.IP, h.Port))
	}
	for _, kind := range []struct {
		name  string
		terms []AffinityTerm
	}{
		{"near", p.RequiredAffinity}, {"apart from", p.RequiredAntiAffinity},
		{"rather near", p.PreferredAffinity}, {"rather apart from", p.PreferredAntiAffinity},
	} {
		for _, term := range kind.terms {
			line := fmt.Sprintf("%s %s by %s in %v and namespaces %s", kind.name,
				word(term.Selector), term.TopologyKey, sets.List(term.Namespaces), word(term.NamespaceSelector))
			if term.Weight != 0 {
				line += fmt.Sprint(", weight ", term.Weight)
			}
			lines = append(lines, line)
		}
	}
	return lines
}

func word(s labels.Selector) string {
	if _, selectable := s.Requirements(); !selectable {
		return "none"
	}
	if s.Empty() {
		return "all"
	}
	return s.String()
}

func amounts(r *Resources) string {
	words := []string{fmt.Sprintf("%dm CPU, %d memory", r.MilliCPU, r.Memory)}
	if r.EphemeralStorage != 0 {
		words = append(words, fmt.Sprintf("%d storage", r.EphemeralStorage))
	}
	for _, name := range slices.Sorted(maps.Keys(r.Other)) {
		words = append(words, fmt.Sprintf("%d %s", r.Other[name], name))
	}
	return strings.Join(words, ", ")
}
