package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/api"
	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/device/dra"
	"github.com/shoal-project/shoal/agent/fence"
	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/agent/logs"
	"github.com/shoal-project/shoal/agent/metrics"
	"github.com/shoal-project/shoal/agent/node"
	"github.com/shoal-project/shoal/agent/pod"
	"github.com/shoal-project/shoal/agent/pod/launch"
	"github.com/shoal-project/shoal/agent/policy"
	"github.com/shoal-project/shoal/agent/policyfeed"
	"github.com/shoal-project/shoal/agent/probe"
	"github.com/shoal-project/shoal/agent/qos"
	podrecord "github.com/shoal-project/shoal/agent/record"
	"github.com/shoal-project/shoal/agent/registry"
	"github.com/shoal-project/shoal/agent/selinux"
	"github.com/shoal-project/shoal/agent/service"
	"github.com/shoal-project/shoal/agent/source"
	"github.com/shoal-project/shoal/agent/status"
	"github.com/shoal-project/shoal/agent/tracing"
	"github.com/shoal-project/shoal/agent/volume"
	"github.com/shoal-project/shoal/cni/foreign"
)

// base is what pods and the Node object are made of. A hollow node has the same,
// from other constructors.
type base struct {
	cfg     *config.Config
	facts   host.Facts
	server  *api.Server
	events  *api.Recorder
	kept    stores
	memory  *node.Memory
	objects *source.Objects
	tokens  *volume.TokenCache
	runtime containers
	claims  *dra.Manager
	exact   *exact       // nil on a hollow node
	guard   *fence.Guard // nil where no pod is stopped by time
	// ownNetwork tells whether pods are connected by the node's own network now; nil
	// where they never are.
	ownNetwork func() bool
	foreign    *foreign.Watcher // tells what other programs do to the network; nil on a hollow node
	services   *service.Source  // nil on a hollow node that plays none
	counts     *metrics.Agent   // nil on a hollow node
	spans      *tracing.Tracer  // nil: nothing is traced
	// makeVolumes gets what volumes are told of a pod.
	makeVolumes func(facts func(*corev1.Pod) volume.Facts) *volume.Manager
	// leaving tells whether the machine shuts down, nodeUID the Node's UID, as the
	// API has it.
	leaving func() bool
	nodeUID func() types.UID
	log     *slog.Logger
}

// podParts run the pods of a node.
type podParts struct {
	pods    *pod.Manager
	probes  *probe.Manager
	static  *source.Static
	api     *source.API // nil without an API
	status  *status.Manager
	volumes *volume.Manager
	offline *pod.Offline
	rotator *logs.Rotator
	// past are the logs of pods that are gone.
	past *logs.Kept
	// policies is nil where no network policy is enforced.
	policies *policy.Engine
	// changed holds a token when a pod's facts or desires changed.
	changed chan struct{}
	// limits holds one too, for what looks after limits of local storage.
	limits chan struct{}
}

func newObjects(kept stores, server *api.Server, log *slog.Logger) (*source.Objects, *volume.TokenCache) {
	objects := &source.Objects{Saved: kept.objects, Client: server.Client, Log: log}
	return objects, &volume.TokenCache{Saved: kept.tokens, Request: server.RequestToken}
}

// newPods makes what runs pods, and takes over those of an earlier agent.
func newPods(ctx context.Context, b base) (*podParts, error) {
	self, err := podHost(b)
	if err != nil {
		return nil, err
	}
	sysctls, err := launch.NewSysctls(b.cfg.AllowedUnsafeSysctls)
	if err != nil {
		return nil, fmt.Errorf("allowedUnsafeSysctls: %w", err)
	}
	access, err := imageAccess(ctx, b)
	if err != nil {
		return nil, err
	}
	logins, err := nodeLogins(b.cfg)
	if err != nil {
		return nil, err
	}
	var p podParts
	p.changed, p.limits = make(chan struct{}, 1), make(chan struct{}, 1)
	p.offline = &pod.Offline{Log: b.log}
	b.objects.Silent, b.tokens.Silent = p.offline.Silent, p.offline.Silent
	p.volumes = b.makeVolumes(func(obj *corev1.Pod) volume.Facts {
		return volume.Facts{NodeName: self.NodeName, HostIPs: self.IPs, PodIPs: p.pods.IPs(obj),
			Allocatable: self.Allocatable}
	})
	p.status = newStatus(b, func(obj *corev1.Pod) (*corev1.Pod, bool) { return p.static.Mirror(obj) })
	probes := &probe.Manager{
		Exec:   b.runtime.brief,
		Events: b.events,
		Report: func(r probe.Result) { p.pods.Probed(r) },
	}
	p.pods = &pod.Manager{
		Host:    self,
		Runtime: b.runtime.brief,
		Images:  b.runtime.images,
		Access:  access,

		PullProgress: pullProgress(b.runtime.builtin),
		MaxPulls:     b.runtime.pulls,

		NodeLogins: logins,
		Volumes:    p.volumes,
		Devices:    b.claims.Devices,
		Objects:    b.objects,
		Services:   serviceObjects(b.services, p.offline),
		Probes:     probes,
		Reporter:   p.status,
		Records:    b.kept.pods,
		Events:     b.events,
		Node:       b.memory.Node,
		Limit:      limit(b.runtime.groups),
		Refuse:     refuse(b.leaving),
		Sysctls:    sysctls,

		WithoutAppArmor: !host.AppArmor(),

		Handler:    handlerOf(b.objects),
		Mirror:     p.mirror,
		Changed:    p.tell,
		Relabelled: p.volumes.Refresh,
		MaxBackoff: b.cfg.MaxContainerRestartPeriod.Duration,
		Dead: pod.DeadLimits{
			MinAge:       b.cfg.MinimumContainerTTLDuration.Duration,
			PerContainer: b.cfg.MaximumDeadContainersPerContainer,
			Node:         b.cfg.MaximumDeadContainers,
		},
		Log: b.log,
	}
	if err := p.keepLogs(b); err != nil {
		return nil, err
	}
	if b.spans != nil {
		p.pods.Spans = b.spans
	}
	if b.exact != nil {
		p.pods.Plugged, p.pods.HasPlugin = b.exact.plugged.Options, b.exact.plugged.Has
		p.pods.NoRoom = b.exact.refused
		p.pods.Pinned, p.pods.Created, p.pods.Fixed = b.exact.pinned, b.exact.created, b.exact.fixed
		self.Unthrottled = b.exact.unthrottled
	}
	p.probes = probes
	if b.counts != nil {
		p.pods.Passes, p.pods.Starts = b.counts.PodWorker, b.counts.PodStart
		p.pods.Preempted = func(r corev1.ResourceName) { b.counts.Preemptions.Inc(string(r)) }
	}
	if p.policies = newPolicies(b, p.offline); p.policies != nil {
		p.pods.Isolate = isolate(p.policies, b.ownNetwork)
		p.pods.Relabelled = func(ctx context.Context, obj *corev1.Pod) error {
			p.policies.Relabel(obj.UID, policyfeed.Key{Namespace: obj.Namespace, Name: obj.Name}, obj.Labels)
			return p.volumes.Refresh(ctx, obj)
		}
	}
	p.pods.Steps = steps(p.pods, b.objects, b.tokens, p.volumes, groupStep(self, b.runtime.groups), b.claims,
		b.exact, b.guard, p.policies)
	if b.guard != nil {
		p.pods.Permit = b.guard.Permit
		b.guard.Changed = func() { p.pods.RetrySetup(isolated) }
	}
	if r := b.runtime.builtin; r != nil {
		r.Imported = p.pods.RetryImages
	}
	b.claims.Follow(p.pods.Poke)
	b.claims.Drivers.Changed = func() { p.pods.RetrySetup(noDevices) }
	p.static = &source.Static{
		Dir:     b.cfg.StaticPodPath,
		Every:   b.cfg.FileCheckFrequency.Duration,
		Node:    b.cfg.NodeName,
		Handler: p.pods,
		Client:  b.server.Client,
		NodeUID: b.nodeUID,
		Changed: p.pods.Poke,
		Ending:  p.pods.Manifest,
		Taken:   p.pods.OfAPI,
		Log:     b.log,
	}
	p.pods.ManifestGone = p.static.Poke
	if b.cfg.StaticPodURL != "" {
		p.static.Remote = &source.Remote{URL: b.cfg.StaticPodURL, Header: b.cfg.StaticPodURLHeader,
			Every: b.cfg.HTTPCheckFrequency.Duration}
	}
	if b.server.Configured() {
		p.api = &source.API{
			Client:  b.server.Client,
			Node:    b.cfg.NodeName,
			Handler: p.pods,
			Mirrors: p.static,
			Log:     b.log,
		}
		p.offline.Synced = p.api.Synced()
	}
	b.objects.Changed = func(namespace string) {
		p.pods.ResyncObjects(namespace)
		p.volumes.Changed(namespace)
	}
	b.objects.Start(ctx)
	probes.Start(ctx)
	p.status.Start(ctx)
	return &p, nil
}

// mirror is what the API has of a pod of a manifest; false while it may be heard yet.
func (p *podParts) mirror(obj *corev1.Pod) (*corev1.Pod, bool) {
	if p.api != nil && !p.offline.CutOff() {
		select {
		case <-p.api.Synced():
		default:
			return nil, false
		}
	}
	m, _ := p.static.Mirror(obj)
	return m, true
}

// tell leaves a token in changed and one in limits.
func (p *podParts) tell() {
	for _, told := range []chan struct{}{p.changed, p.limits} {
		select {
		case told <- struct{}{}:
		default:
		}
	}
}

// takeOver goes on with what an earlier agent left.
func (p *podParts) takeOver(ctx context.Context, b base) error {
	records, err := b.kept.pods.All()
	if err != nil {
		return err
	}
	if err := guardRunning(b.guard, records); err != nil {
		return err
	}
	var mounted []*corev1.Pod
	for _, r := range records {
		if r.Pod != nil && !r.Released {
			b.objects.Track(r.Pod)
		}
		if r.Mounted() {
			mounted = append(mounted, r.Pod)
		}
	}
	if err := p.volumes.Restore(mounted); err != nil {
		return err
	}
	if p.policies != nil { // before a worker can tell something newer
		if err := adoptPolicies(ctx, p.policies, b, records); err != nil {
			return err
		}
	}
	if err := p.pods.Restore(ctx, records); err != nil {
		return err
	}
	p.pods.Adopt(p.volumes.Pods())
	if b.exact != nil {
		p.pods.Adopt(b.exact.pods())
	}
	return nil
}

func podHost(b base) (*launch.Host, error) {
	hostname, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	_, allocatable := nodeCapacity(b.cfg, b.facts)
	swap, err := podSwap(b)
	if err != nil {
		return nil, err
	}
	throttle, err := podThrottle(b)
	if err != nil {
		return nil, err
	}
	return &launch.Host{
		NodeName:         b.cfg.NodeName,
		Hostname:         hostname,
		IPs:              b.facts.IPs,
		MemoryBytes:      b.facts.MemoryBytes,
		Allocatable:      allocatable,
		PageSizes:        slices.Sorted(maps.Keys(b.facts.HugePages)),
		UsersPerPod:      b.cfg.UserNamespaces.Users(),
		SELinux:          selinux.New() != nil,
		SeccompDefault:   b.cfg.Seccomp(),
		Unified:          b.runtime.tree.Unified(b.cfg.SingleProcessOOMKill),
		SwapBytes:        swap,
		Reserve:          b.cfg.MemoryReservationPolicy == config.ReserveTiered,
		Throttle:         throttle,
		CFS:              launch.CFS{Off: !b.cfg.CFSQuota(), Period: b.cfg.CPUCFSQuotaPeriod.Duration.Microseconds()},
		RootDir:          b.cfg.RootDir,
		PodLogsDir:       b.cfg.PodLogsDir,
		ContainerLogsDir: b.cfg.ContainerLogsDir,
		ClusterDNS:       b.cfg.ClusterDNS,
		ClusterDomain:    b.cfg.ClusterDomain,
		ResolvConf:       b.cfg.ResolvConf,
		CgroupParent:     func(p *corev1.Pod) string { return cgroupOf(b.runtime.tree, p) },
	}, nil
}

// podSwap is the swap that pods use together, in bytes.
func podSwap(b base) (int64, error) {
	switch {
	case b.facts.SwapBytes == 0:
		return 0, nil
	case b.cfg.FailSwapOn:
		return 0, errors.New("failSwapOn: the machine has swap: turn it off (swapoff -a), or set failSwapOn to false")
	case b.cfg.MemorySwap.SwapBehavior != config.LimitedSwap:
		return 0, nil
	case len(b.runtime.tree.Unified(false)) == 0:
		return 0, errors.New("memorySwap.swapBehavior: LimitedSwap is for machines whose control groups are v2: use NoSwap")
	}
	return b.facts.SwapBytes, nil
}

// podThrottle is the part of the way to its limit of memory at which a container is slowed
// down, 0 for none.
func podThrottle(b base) (float64, error) {
	f := b.cfg.MemoryThrottlingFactor
	if f == nil {
		return 0, nil
	}
	if len(b.runtime.tree.Unified(false)) == 0 {
		return 0, errors.New("memoryThrottlingFactor is for machines whose control groups are v2: leave it out")
	}
	return *f, nil
}

// nodeLogins are the node's own logins at registries: those of the kubelet's file
// config.json, and of credential providers.
func nodeLogins(cfg *config.Config) (func(context.Context, string) ([]*criv1.AuthConfig, error), error) {
	n := &registry.Node{File: filepath.Join(cfg.RootDir, "config.json")}
	if cfg.ImageCredentialProviderConfig != "" {
		var err error
		n.Plugins, err = registry.LoadPlugins(cfg.ImageCredentialProviderConfig, cfg.ImageCredentialProviderBinDir)
		if err != nil {
			return nil, err
		}
	}
	return n.For, nil
}

// imageAccess keeps which pods may use an image that is there; nil on a hollow
// node, whose images are all the same.
func imageAccess(ctx context.Context, b base) (*pod.Access, error) {
	if b.kept.images == nil {
		return nil, nil
	}
	access := &pod.Access{
		Policy:    pod.VerifyPolicy(b.cfg.ImagePullCredentialsVerificationPolicy),
		Allowlist: b.cfg.PreloadedImagesVerificationAllowlist,
		Records:   b.kept.images,
		Images:    b.runtime.images,
		Log:       b.log,
	}
	return access, access.Load(ctx)
}

func newStatus(b base, mirror func(*corev1.Pod) (*corev1.Pod, bool)) *status.Manager {
	scheme, _, _ := strings.Cut(b.runtime.version, "://")
	var ends *metrics.Counts
	if b.counts != nil {
		ends = b.counts.ContainerEnds
	}
	devices := health(b)
	return &status.Manager{
		API: b.server.Pods(),
		Facts: func(p *corev1.Pod) status.Facts {
			return status.Facts{
				HostIPs:  b.facts.IPs,
				Scheme:   scheme + "://",
				QOS:      launch.QoS(p),
				Restarts: pod.Restarts,
				Now:      metav1.Now().Rfc3339Copy(),
				Devices:  devices,
			}
		},
		Mirror: mirror,
		Ends:   ends,
		Log:    b.log,
	}
}

// serviceObjects are what containers' environments tell of services; none on a
// node without them.
func serviceObjects(s *service.Source, o *pod.Offline) func(context.Context) ([]*corev1.Service, bool) {
	if s == nil {
		return func(context.Context) ([]*corev1.Service, bool) { return nil, true }
	}
	return func(ctx context.Context) ([]*corev1.Service, bool) { return s.Objects(ctx, o.CutOff) }
}

// limit changes the limits of a pod that runs; with an outside runtime only that
// could.
func limit(g *qos.Groups) func(*corev1.Pod, launch.Limits) error {
	if g == nil {
		return func(*corev1.Pod, launch.Limits) error { return nil }
	}
	return func(p *corev1.Pod, l launch.Limits) error { return g.Set(cgroupOf(g.Tree, p), qos.Limits(l)) }
}

// refuse is why the node takes no pods now, nil when it does.
func refuse(leaving func() bool) func() *podrecord.Verdict {
	return func() *podrecord.Verdict {
		if !leaving() {
			return nil
		}
		return &podrecord.Verdict{Reason: "NodeShutdown", Message: "Pod was rejected as the node is shutting down."}
	}
}

// handlerOf is the CRI's name of what a RuntimeClass stands for.
func handlerOf(objects *source.Objects) func(context.Context, string) (string, error) {
	return func(ctx context.Context, class string) (string, error) {
		c, err := objects.RuntimeClass(ctx, class)
		if err != nil {
			return "", err
		}
		return c.Handler, nil
	}
}
