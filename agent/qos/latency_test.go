package qos

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/cgroup"
)

// Each class has its target once: in its group, or in each Guaranteed pod's.
func TestLatencyTargets(t *testing.T) {
	for _, driver := range []cgroup.Driver{cgroup.Cgroupfs, cgroup.Systemd} {
		tree := Tree{Driver: driver}
		l := &latencies{tree: tree, targets: map[corev1.PodQOSClass]time.Duration{
			corev1.PodQOSGuaranteed: 10 * time.Millisecond, corev1.PodQOSBestEffort: 100 * time.Millisecond,
		}}
		for _, tt := range []struct {
			group string
			want  time.Duration
			own   bool
		}{
			{tree.Pod(corev1.PodQOSGuaranteed, "u"), 10 * time.Millisecond, true},
			{tree.Class(corev1.PodQOSBurstable), 0, true},
			{tree.Class(corev1.PodQOSBestEffort), 100 * time.Millisecond, true},
			{tree.Pod(corev1.PodQOSBurstable, "u"), 0, false},
			{tree.Pod(corev1.PodQOSBestEffort, "u"), 0, false},
			{tree.Kubepods(), 0, false},
		} {
			if d, own := l.target(tt.group); d != tt.want || own != tt.own {
				t.Errorf("%s: %s, %v; want %s, %v", tt.group, d, own, tt.want, tt.own)
			}
		}
	}
}
