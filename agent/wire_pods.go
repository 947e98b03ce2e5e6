package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis"

	"github.com/shoal-project/shoal/agent/node"
	"github.com/shoal-project/shoal/agent/pod"
	"github.com/shoal-project/shoal/agent/probe"
	podrecord "github.com/shoal-project/shoal/agent/record"
	"github.com/shoal-project/shoal/agent/runtime"
	"github.com/shoal-project/shoal/agent/source"
	"github.com/shoal-project/shoal/agent/status"
	"github.com/shoal-project/shoal/agent/volume"
)

func (a *agent) buildVolumes(context.Context) error {
	a.volumes = &volume.Manager{RootDir: a.cfg.RootDir, Objects: a.objects, Tokens: a.tokens, Claims: a.objects, Facts: a.volumeFacts, Log: a.log}
	return nil
}

func (a *agent) buildPods(ctx context.Context) error {
	_, allocatable := node.Capacity(a.facts, a.cfg.MaxPods, a.reserved())
	hostname, err := os.Hostname()
	if err != nil {
		return err
	}
	host := &pod.Host{
		NodeName: a.cfg.NodeName, Hostname: hostname, IPs: a.facts.IPs, MemoryBytes: a.facts.MemoryBytes, Allocatable: allocatable,
		PageSizes: slices.Sorted(maps.Keys(a.facts.HugePages)),
		RootDir:   a.cfg.RootDir, PodLogsDir: a.cfg.PodLogsDir, ContainerLogsDir: a.cfg.ContainerLogsDir,
		ClusterDNS: a.cfg.ClusterDNS, ClusterDomain: a.cfg.ClusterDomain, ResolvConf: a.cfg.ResolvConf, CgroupParent: a.cgroupOf,
		Unified: a.unified(), SeccompDefault: a.cfg.Seccomp(),
	}
	a.probes = &probe.Manager{Exec: a.brief(), Events: a.events, Report: func(r probe.Result) { a.pods.Probed(r) }}
	a.status = &status.Manager{API: statusAPI{a.client}, Facts: a.statusFacts, Mirror: func(p *v1.Pod) (*v1.Pod, bool) { return a.static.Mirror(p) }, Log: a.log}
	sysctls, err := pod.NewSysctls(a.cfg.AllowedUnsafeSysctls)
	if err != nil {
		return fmt.Errorf("allowedUnsafeSysctls: %w", err)
	}
	a.pods = &pod.Manager{
		Host: host, Runtime: a.brief(), Images: a.images, Volumes: a.volumes, Objects: a.objects, Services: a.serviceObjects,
		Probes: a.probes, Reporter: a.status, Records: a.records, Events: a.events, Node: a.admissionNode, Relabelled: a.volumes.Refresh, Refuse: a.refuse,
		Limit: a.limitPod, Sysctls: sysctls, Handler: a.runtimeHandler,
		MaxBackoff: a.cfg.MaxContainerRestartPeriod.Duration, Log: a.log,
	}
	if a.pulled != nil {
		a.pods.Access = &pod.Access{
			Policy:    pod.VerifyPolicy(a.cfg.ImagePullCredentialsVerificationPolicy),
			Allowlist: a.cfg.PreloadedImagesVerificationAllowlist,
			Records:   a.pulled,
			Images:    a.images,
			Log:       a.log,
		}
		if err := a.pods.Access.Load(ctx); err != nil {
			return err
		}
	}
	a.pods.Steps = a.steps()
	a.ended = make(chan struct{}, 1)
	a.pods.Changed = func() {
		select {
		case a.ended <- struct{}{}:
		default:
		}
	}
	a.static = &source.Static{Dir: a.cfg.StaticPodPath, Node: a.cfg.NodeName, Handler: a.pods, Client: a.client,
		NodeUID: a.nodeUID, Changed: a.pods.Poke, Log: a.log}
	if a.client != nil {
		a.api = &source.API{Client: a.client, Node: a.cfg.NodeName, Handler: a.pods, Mirrors: a.static, Log: a.log}
	}
	a.objects.Changed = func(namespace string) {
		a.pods.ResyncObjects(namespace)
		a.volumes.Changed(namespace)
	}
	a.objects.Start(ctx)
	a.probes.Start(ctx)
	a.status.Start(ctx)
	return nil
}

// brief is the runtime that keeps little of what probes and hooks say.
func (a *agent) brief() cri.RuntimeService {
	if a.builtin == nil {
		return a.runtime
	}
	return runtime.Brief{Runtime: a.builtin}
}

func (a *agent) volumeFacts(p *v1.Pod) volume.Facts {
	f := volume.Facts{NodeName: a.cfg.NodeName, HostIPs: a.facts.IPs, Allocatable: a.pods.Host.Allocatable}
	if p.Spec.HostNetwork {
		f.PodIPs = a.facts.IPs
	} else if v, ok := a.pods.View(p.UID); ok {
		if sb := v.Observed.Sandbox(); sb != nil {
			f.PodIPs = sb.IPs
		}
	}
	return f
}

// runtimeHandler is the CRI's name of what a RuntimeClass stands for.
func (a *agent) runtimeHandler(ctx context.Context, class string) (string, error) {
	c, err := a.objects.RuntimeClass(ctx, class)
	if err != nil {
		return "", err
	}
	return c.Handler, nil
}

func (a *agent) statusFacts(p *v1.Pod) status.Facts {
	scheme, _, _ := cut(a.version)
	return status.Facts{HostIPs: a.facts.IPs, Scheme: scheme + "://", QOS: pod.QoS(p), Restarts: pod.Restarts, Now: metav1.Now().Rfc3339Copy()}
}

// restore takes over what an earlier agent left.
func (a *agent) restore(ctx context.Context) error {
	records, err := a.records.All()
	if err != nil {
		return err
	}
	for _, r := range records {
		if r.Pod != nil && !r.Released {
			a.objects.Track(r.Pod)
		}
	}
	if err := a.pods.Restore(ctx, records); err != nil {
		return err
	}
	a.adoptVolumes(ctx, records)
	return nil
}

// adoptVolumes makes the volumes of pods that run follow changes again.
func (a *agent) adoptVolumes(ctx context.Context, records map[string]*podrecord.Pod) {
	for _, r := range records {
		if r.Pod == nil || r.Released || r.Stopping != nil || r.SandboxAttempts == 0 {
			continue
		}
		p := r.Pod
		go func() {
			if err := a.volumes.Ensure(ctx, p); err != nil && ctx.Err() == nil {
				a.log.Debug("volumes are made again with the pod", "pod", p.Namespace+"/"+p.Name, "error", err)
			}
		}()
	}
}

// offlineAfter is how long the API may be silent at start before pods that do
// not run are started from the checkpoint.
const offlineAfter = 3 * time.Second

// unhold starts pods from the checkpoint when the API is not heard soon.
func (a *agent) unhold(ctx context.Context) error {
	var synced <-chan struct{}
	if a.api != nil {
		synced = a.api.Synced()
	}
	select {
	case <-ctx.Done():
		return nil
	case <-synced:
		return nil
	case <-time.After(offlineAfter):
	}
	a.log.Info("the API is not heard: pods start from the checkpoint")
	a.cutOff.Store(true)
	a.pods.Unhold()
	return nil
}
