package qos

import (
	"errors"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/cgroup"
)

// latencies are the targets of how long disks may take to serve pods of each class
// (io.latency): when a group waits longer than its target, the kernel lets siblings whose
// target is longer, or who have none, have fewer requests under way. Guaranteed pods have
// no common group: each has the target itself.
type latencies struct {
	cgroups *cgroup.Root
	tree    Tree
	targets map[corev1.PodQOSClass]time.Duration
	disks   []string
}

// adopt sets the targets of the classes and of the pods that were here before; none
// where none is configured any more.
func (l *latencies) adopt(log *slog.Logger) error {
	var errs []error
	classes := []string{l.tree.Class(corev1.PodQOSBurstable), l.tree.Class(corev1.PodQOSBestEffort)}
	for _, group := range classes {
		errs = append(errs, l.set(group))
	}
	for _, name := range l.cgroups.List(l.tree.Kubepods()) {
		if child := path.Join(l.tree.Kubepods(), name); !slices.Contains(classes, child) {
			errs = append(errs, l.set(child))
		}
	}
	if len(l.targets) == 0 {
		return errors.Join(errs...)
	}
	switch {
	case !l.cgroups.HasIOLatency(l.tree.Kubepods()):
		log.Warn("ioLatencyTargets have no effect: this kernel has no io.latency "+
			"(it takes control groups v2 alone, and CONFIG_BLK_CGROUP_IOLATENCY)", "controlGroups", l.cgroups.Mode())
	case len(l.disks) == 0:
		log.Warn("ioLatencyTargets have no effect: the agent's directories are on no disk of this machine")
	default:
		log.Info("classes of pods have targets of disk latency", "targets", l.targets, "disks", l.disks)
	}
	return errors.Join(errs...)
}

// set gives a group its target.
func (l *latencies) set(group string) error {
	target, own := l.target(group)
	if !own {
		return nil
	}
	if err := l.cgroups.SetIOLatency(group, l.disks, target); err != nil {
		return fmt.Errorf("ioLatencyTargets: %w", err)
	}
	return nil
}

// target is that of a class's group or of a Guaranteed pod's, 0 for none; own: groups
// below those of the other classes are served by what these have.
func (l *latencies) target(group string) (d time.Duration, own bool) {
	switch {
	case group == l.tree.Class(corev1.PodQOSBurstable):
		return l.targets[corev1.PodQOSBurstable], true
	case group == l.tree.Class(corev1.PodQOSBestEffort):
		return l.targets[corev1.PodQOSBestEffort], true
	case path.Dir(group) == l.tree.Kubepods():
		return l.targets[corev1.PodQOSGuaranteed], true
	}
	return 0, false
}

// ensured is what is to be done for a pod that is made.
func (l *latencies) ensured(pod string) error {
	if len(l.targets) == 0 {
		return nil
	}
	return l.set(pod)
}
