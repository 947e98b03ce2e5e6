package pod

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestProbeCommand: a probe's command has the values of the container's variables, as far as
// its spec tells them.
func TestProbeCommand(t *testing.T) {
	c := &corev1.Container{Env: []corev1.EnvVar{
		{Name: "A", Value: "1"}, {Name: "B", Value: "$(A)"}, {Name: "A", Value: "2"},
		{Name: "F", ValueFrom: &corev1.EnvVarSource{}}}}
	p := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{
		Command: []string{"sh", "-$(A)-$(B)-$(F)-$(NONE)-$$(A)-$A"}}}}
	got := expanded(c, p).Exec.Command
	if want := []string{"sh", "-2-$(A)--$(NONE)-$(A)-$A"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if p.Exec.Command[1][:5] != "-$(A)" {
		t.Error("the pod's own spec was changed")
	}
}
