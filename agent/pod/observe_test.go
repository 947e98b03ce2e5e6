package pod

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/pod/launch"
	"github.com/shoal-project/shoal/agent/record"
)

// TestLastWords: of a long message of a container's end the end is told, which says most, behind
// what the runtime says; all of a pod's together are bounded.
func TestLastWords(t *testing.T) {
	m := &Manager{Host: &launch.Host{RootDir: t.TempDir()}}
	p := testPod(corev1.RestartPolicyAlways, "a")
	path := m.Host.TerminationFile(p, "a", 0)
	for _, c := range [][2]string{
		{"", "killed"},
		{"why", "killed: why"},
		{"\xffa", "killed: \ufffda"},
		{strings.Repeat("x", maxMessage) + "why", "killed: " + strings.Repeat("x", maxMessage-3) + "why"},
	} {
		text, want := c[0], c[1]
		if err := makeFile(&launch.File{Path: path, Data: []byte(text), Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		o := observed(p, "a=exit1")
		o.Containers[0].Message = "killed"
		if m.lastWords(p, &record.Pod{}, o); o.Containers[0].Message != want {
			t.Errorf("%q, want %q", o.Containers[0].Message, want)
		}
	}
	p = testPod(corev1.RestartPolicyAlways, "a", "b", "c", "d", "e", "f")
	o := observed(p, "a=exit1")
	if m.lastWords(p, &record.Pod{}, o); len(o.Containers[0].Message) != maxMessages/6 {
		t.Errorf("one of six containers says %d bytes", len(o.Containers[0].Message))
	}
}
