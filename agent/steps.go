package main

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/device/dra"
	"github.com/shoal-project/shoal/agent/fence"
	"github.com/shoal-project/shoal/agent/pod"
	"github.com/shoal-project/shoal/agent/pod/launch"
	"github.com/shoal-project/shoal/agent/policy"
	"github.com/shoal-project/shoal/agent/qos"
	"github.com/shoal-project/shoal/agent/source"
	"github.com/shoal-project/shoal/agent/volume"
)

// steps is the ordered list of what a pod gets before its containers. They are
// ensured from the first to the last and released from the last to the first.
// Containers follow: images, create, start, hooks, probes (pod/job.go). exact is nil where
// pods are given nothing of the machine, guard where no pod is stopped by time, policies where none are enforced.
func steps(
	pods *pod.Manager, objects *source.Objects, tokens *volume.TokenCache, volumes *volume.Manager, groups pod.Step,
	claims *dra.Manager, exact *exact, guard *fence.Guard, policies *policy.Engine,
) []pod.Step {
	var list []pod.Step
	if guard != nil { // before anything of the pod is mounted
		list = append(list, pod.Step{Name: "fence", Ensure: permit(guard), Release: unguard(guard)})
	}
	if exact != nil { // before anything is made for a pod that cannot have its share of the machine
		list = append(list, pod.Step{Name: "CPUs, memory and devices", Ensure: ensureExact(exact),
			Release: releaseExact(exact, pods)})
	}
	list = append(list, []pod.Step{
		{Name: "objects", Ensure: track(objects), Release: untrack(objects, tokens)},
		{Name: "volumes", Ensure: ensureVolumes(volumes), Release: releaseVolumes(volumes)},
	}...)
	list = append(list, groups, pod.Step{Name: "devices", Ensure: ensureDevices(claims), Release: releaseDevices(claims)})
	if policies != nil {
		list = append(list, forgetPolicies(policies))
	}
	return append(list, pod.Step{Name: "sandbox", Ensure: pods.EnsureSandbox, Release: pods.ReleaseSandbox})
}

type step = func(context.Context, *pod.Setting) error

func track(objects *source.Objects) step {
	return func(_ context.Context, s *pod.Setting) error {
		objects.Track(s.Pod)
		return nil
	}
}

func untrack(objects *source.Objects, tokens *volume.TokenCache) step {
	return func(_ context.Context, s *pod.Setting) error {
		objects.Untrack(s.Pod.UID)
		return tokens.Forget(string(s.Pod.UID))
	}
}

func ensureVolumes(v *volume.Manager) step {
	return func(ctx context.Context, s *pod.Setting) error {
		if err := v.Ensure(ctx, s.Pod); err != nil {
			failed := new(volume.Error)
			if !errors.As(err, &failed) {
				failed = &volume.Error{}
			}
			return &pod.Fault{Reason: failed.Reason(), Message: err.Error(), Rejects: failed.Rejects()}
		}
		return nil
	}
}

func releaseVolumes(v *volume.Manager) step {
	return func(ctx context.Context, s *pod.Setting) error { return v.Release(ctx, s.Pod) }
}

// noDevices is the reason of events of pods whose devices are not ready.
const noDevices = "FailedPrepareDynamicResources"

// ensureDevices has the devices of the pod's resource claims prepared. A pod does not
// run without them.
func ensureDevices(m *dra.Manager) step {
	return func(ctx context.Context, s *pod.Setting) error {
		if err := m.Ensure(ctx, s.Pod); err != nil {
			return &pod.Fault{Reason: noDevices, Message: "Failed to prepare dynamic resources: " + err.Error()}
		}
		return nil
	}
}

func releaseDevices(m *dra.Manager) step {
	return func(ctx context.Context, s *pod.Setting) error { return m.Release(ctx, s.Pod) }
}

// groupStep makes the pod's control group, and deletes it. Without groups that is their
// runtime's.
func groupStep(host *launch.Host, groups *qos.Groups) pod.Step {
	nothing := func(context.Context, *pod.Setting) error { return nil }
	s := pod.Step{Name: "cgroup", Ensure: nothing, Release: nothing}
	if groups != nil {
		s.Ensure, s.Release = ensureCgroup(host, groups), releaseCgroup(groups)
	}
	return s
}

func ensureCgroup(host *launch.Host, g *qos.Groups) step {
	return func(_ context.Context, s *pod.Setting) error {
		if err := g.Ensure(cgroupOf(g.Tree, s.Pod), qos.Limits(host.PodLimits(s.Pod))); err != nil {
			return &pod.Fault{
				Reason:  "FailedCreatePodContainer",
				Message: "unable to ensure pod container exists: " + err.Error(),
			}
		}
		return nil
	}
}

func releaseCgroup(g *qos.Groups) step {
	return func(_ context.Context, s *pod.Setting) error {
		if s.Pod.UID == "" {
			return nil
		}
		return g.Delete(cgroupOf(g.Tree, s.Pod))
	}
}

// cgroupOf is a pod's control group: by quality of service, as the kubelet has it.
func cgroupOf(t qos.Tree, p *corev1.Pod) string { return t.Pod(launch.QoS(p), p.UID) }
