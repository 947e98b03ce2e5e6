package status

import (
	"bytes"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/metrics"
)

// Each end is counted once: as the state, later as the last one.
func TestCountEnds(t *testing.T) {
	ends := metrics.NewCounts("ends", "", "container_type", "exit_code", "reason")
	end := func(id string, code int32) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ContainerID: id, ExitCode: code,
			Reason: "Error"}}
	}
	waits := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	runs := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	one := func(state, last corev1.ContainerState) corev1.PodStatus {
		return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{
			{Name: "a", State: state, LastTerminationState: last}}}
	}
	none := corev1.ContainerState{}
	statuses := []corev1.PodStatus{
		one(runs, none), one(end("0", 139), none), one(runs, end("0", 139)), one(waits, end("1", 139)),
		one(end("2", 1), end("1", 139)), one(end("2", 1), end("2", 1)),
		{InitContainerStatuses: []corev1.ContainerStatus{{Name: "i", State: end("3", 7)}}},
	}
	for i := range statuses[1:] {
		countEnds(ends, &statuses[i], &statuses[i+1])
	}
	var b bytes.Buffer
	page := metrics.NewPage(&b)
	ends.Show(page)
	if err := page.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`ends{container_type="container",exit_code="139",reason="Error"} 2`,
		`ends{container_type="container",exit_code="1",reason="Error"} 1`,
		`ends{container_type="init_container",exit_code="7",reason="Error"} 1`,
	} {
		if !strings.Contains(b.String(), want+"\n") {
			t.Errorf("no %s in\n%s", want, &b)
		}
	}
}
