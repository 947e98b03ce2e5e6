package main

import (
	"context"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/pod"
)

// steps is the ordered list of what a pod gets before its containers. They are
// ensured from the first to the last and released from the last to the first.
// Containers follow: images, create, start, hooks, probes (pod/job.go).
func (a *agent) steps() []pod.Step {
	return []pod.Step{
		{Name: "objects", Ensure: a.trackObjects, Release: a.untrackObjects},
		{Name: "volumes", Ensure: a.ensureVolumes, Release: a.releaseVolumes},
		{Name: "cgroup", Ensure: a.ensureCgroup, Release: a.releaseCgroup},
		{Name: "sandbox", Ensure: a.pods.EnsureSandbox, Release: a.pods.ReleaseSandbox},
	}
}

func (a *agent) trackObjects(_ context.Context, s *pod.Setting) error {
	a.objects.Track(s.Pod)
	return nil
}

func (a *agent) untrackObjects(_ context.Context, s *pod.Setting) error {
	a.objects.Untrack(s.Pod.UID)
	return a.tokens.Forget(string(s.Pod.UID))
}

func (a *agent) ensureVolumes(ctx context.Context, s *pod.Setting) error {
	if err := a.volumes.Ensure(ctx, s.Pod); err != nil {
		return &pod.Fault{Reason: "FailedMount", Message: err.Error()}
	}
	return nil
}

func (a *agent) releaseVolumes(ctx context.Context, s *pod.Setting) error {
	return a.volumes.Release(ctx, s.Pod)
}

func (a *agent) ensureCgroup(_ context.Context, s *pod.Setting) error {
	if a.cgroups == nil {
		return nil // another runtime makes them
	}
	if err := a.cgroups.Ensure(a.cgroupOf(s.Pod), a.podResources(pod.PodLimits(s.Pod))); err != nil {
		return &pod.Fault{Reason: "FailedCreatePodContainer", Message: "unable to ensure pod container exists: " + err.Error()}
	}
	return nil
}

// limitPod changes the limits of a pod that runs.
func (a *agent) limitPod(p *v1.Pod, l pod.Limits) error {
	if a.cgroups == nil {
		return nil // only its runtime could
	}
	return a.cgroups.Set(a.cgroupOf(p), a.podResources(l))
}

func (a *agent) podResources(l pod.Limits) cgroup.Resources {
	shares := uint64(l.CPUShares)
	r := cgroup.Resources{CPUShares: &shares, PidsLimit: a.pids.each}
	if l.CPUQuota > 0 {
		period := uint64(l.CPUPeriod)
		r.CPUQuota, r.CPUPeriod = &l.CPUQuota, &period
	}
	if l.MemoryBytes > 0 {
		r.MemoryLimit = &l.MemoryBytes
	}
	return r
}

func (a *agent) releaseCgroup(_ context.Context, s *pod.Setting) error {
	if a.cgroups == nil || s.Pod.UID == "" {
		return nil
	}
	return a.cgroups.Delete(a.cgroupOf(s.Pod))
}

// driver is who makes control groups: the runtime and the agent must agree.
func (a *agent) driver() cgroup.Driver { return cgroup.Driver(a.cfg.CgroupDriver) }

// cgroupRoot is the parent of kubepods.
func (a *agent) cgroupRoot() string {
	return a.driver().Child("", strings.FieldsFunc(a.cfg.CgroupRoot, func(r rune) bool { return r == '/' })...)
}

// kubepods is the cgroup of all pods.
func (a *agent) kubepods() string { return a.driver().Child(a.cgroupRoot(), "kubepods") }

// cgroupOf is the pod's cgroup: by quality of service, as the kubelet has it.
func (a *agent) cgroupOf(p *v1.Pod) string {
	parent := a.kubepods()
	switch pod.QoS(p) {
	case v1.PodQOSBurstable:
		parent = a.driver().Child(parent, "burstable")
	case v1.PodQOSBestEffort:
		parent = a.driver().Child(parent, "besteffort")
	}
	return a.driver().Child(parent, "pod"+string(p.UID))
}
