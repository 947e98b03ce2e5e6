package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	authv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"
	cri "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/checkpoint"
	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/dns"
	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/agent/network"
	"github.com/shoal-project/shoal/agent/node"
	"github.com/shoal-project/shoal/agent/pod"
	"github.com/shoal-project/shoal/agent/probe"
	"github.com/shoal-project/shoal/agent/proxy"
	podrecord "github.com/shoal-project/shoal/agent/record"
	"github.com/shoal-project/shoal/agent/runtime"
	"github.com/shoal-project/shoal/agent/service"
	"github.com/shoal-project/shoal/agent/source"
	"github.com/shoal-project/shoal/agent/status"
	"github.com/shoal-project/shoal/agent/trim"
	"github.com/shoal-project/shoal/agent/volume"
)

// offlineAfter is how long the API may be silent at start before pods that do
// not run are started from the checkpoint.
const offlineAfter = 3 * time.Second

// agent is everything that the node runs, wired.
type agent struct {
	cfg   *config.Config
	log   *slog.Logger
	facts node.Facts
	claim io.Closer // on the names of bridge and table, while the process lives
	// cutOff is true once pods started without the API.
	cutOff atomic.Bool

	rest    *rest.Config
	client  kubernetes.Interface // nil without a kubeconfig
	cgroups *cgroup.Root
	builtin *runtime.Runtime // nil with an outside runtime
	runtime cri.RuntimeService
	images  cri.ImageManagerService
	version string

	records  *checkpoint.Store[podrecord.Pod]
	nodes    *checkpoint.Store[v1.Node]
	network  *network.Manager
	gossip   *gossip.Group
	services *service.Source
	objects  *source.Objects
	api      *source.API
	static   *source.Static
	tokens   *volume.TokenCache
	volumes  *volume.Manager
	probes   *probe.Manager
	status   *status.Manager
	pods     *pod.Manager
	node     *node.Manager
	events   *recorder
	leaving  atomic.Bool
	ended    chan struct{}
	saved    atomic.Pointer[v1.Node]
}

// task is something that runs as long as the agent.
type task struct {
	name string
	run  func(context.Context) error
}

// run builds the agent and runs it until ctx ends; pods are left running.
func run(ctx context.Context, cfg *config.Config, log *slog.Logger) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	a := &agent{cfg: cfg, log: log}
	if err := a.build(ctx); err != nil {
		return err
	}
	defer a.close()
	var wg sync.WaitGroup
	for _, t := range a.tasks() {
		wg.Go(func() {
			if err := t.run(ctx); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("%s: %w", t.name, err))
			}
		})
	}
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		log.Debug("systemd was not told", "error", err)
	}
	<-ctx.Done()
	if _, err := daemon.SdNotify(false, daemon.SdNotifyStopping); err != nil {
		log.Debug("systemd was not told", "error", err)
	}
	wait(&wg, stopWait)
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// stopWait is how long tasks may take to end. client-go's watches do not hear
// of the end while they pause between tries.
const stopWait = time.Second

func wait(wg *sync.WaitGroup, limit time.Duration) {
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(limit):
	}
}

// build makes every part, in the order in which they need each other.
func (a *agent) build(ctx context.Context) error {
	for _, part := range []func(context.Context) error{
		a.buildDirs, a.buildStores, a.buildClient, a.buildNetwork, a.buildRuntime,
		a.buildGossip, a.buildServices, a.buildPods, a.buildNode,
	} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return a.restore(ctx)
}

func (a *agent) buildDirs(context.Context) error {
	dirs := []string{a.cfg.RootDir, filepath.Join(a.cfg.RootDir, "pods"), filepath.Join(a.cfg.RootDir, "plugins_registry"),
		filepath.Join(a.cfg.RootDir, "plugins"), a.cfg.PodLogsDir, a.cfg.RunDir}
	if d := a.cfg.ContainerLogsDir; d != "" && d != "-" {
		dirs = append(dirs, d)
	}
	for _, d := range dirs {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	var err error
	a.facts, err = node.Look(a.cfg.RootDir, a.cfg.NodeIP)
	return err
}

func (a *agent) buildStores(context.Context) (err error) {
	dir := a.cfg.CheckpointDir()
	if a.records, err = checkpoint.Open[podrecord.Pod](filepath.Join(dir, "pods"), a.log); err != nil {
		return err
	}
	if a.nodes, err = checkpoint.Open[v1.Node](filepath.Join(dir, "node"), a.log); err != nil {
		return err
	}
	objects, err := checkpoint.Open[source.SavedObject](filepath.Join(dir, "objects"), a.log)
	if err != nil {
		return err
	}
	tokens, err := checkpoint.Open[volume.PodTokens](filepath.Join(dir, "tokens"), a.log)
	if err != nil {
		return err
	}
	a.objects = &source.Objects{Saved: objects, Log: a.log}
	a.tokens = &volume.TokenCache{Saved: tokens, Request: a.requestToken}
	return nil
}

func (a *agent) requestToken(ctx context.Context, namespace, account string, r *authv1.TokenRequest) (*authv1.TokenRequest, error) {
	if a.client == nil {
		return nil, errors.New("no API server is configured")
	}
	return a.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, r, metav1.CreateOptions{})
}

func (a *agent) buildClient(ctx context.Context) error {
	if a.cfg.Kubeconfig == "" {
		a.events = &recorder{}
		return nil
	}
	rc, err := clientcmd.BuildConfigFromFlags("", a.cfg.Kubeconfig)
	if err != nil {
		return fmt.Errorf("kubeconfig %s: %w", a.cfg.Kubeconfig, err)
	}
	rc.ContentType = "application/vnd.kubernetes.protobuf"
	rc.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	rc.UserAgent = "kubelet/" + node.Version + " shoal-agent"
	rc.QPS = -1 // the API server's flow control decides
	a.rest = rc
	client, err := kubernetes.NewForConfig(rc)
	if err != nil {
		return fmt.Errorf("kubeconfig %s: %w", a.cfg.Kubeconfig, err)
	}
	a.client, a.objects.Client = client, client
	a.events = newRecorder(ctx, client, a.cfg.NodeName)
	return nil
}

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		if p, err := netip.ParsePrefix(s); err == nil {
			out = append(out, p)
		}
	}
	return out
}

func (a *agent) buildNetwork(context.Context) error {
	var err error
	if a.claim, err = network.Claim(a.cfg.Bridge, a.cfg.NFTable); err != nil {
		return err
	}
	a.network = network.New(network.Config{
		ConfDir: a.cfg.CNIConfDir, BinDir: a.cfg.CNIBinDir, CacheDir: filepath.Join(a.cfg.DataDir, "cni", "cache"),
		Bridge: a.cfg.Bridge, Table: a.cfg.NFTable + "-pods", StateDir: filepath.Join(a.cfg.DataDir, "cni", "state"),
		ClusterCIDRs: prefixes(a.cfg.ClusterCIDR), ServiceCIDRs: prefixes(a.cfg.ServiceCIDR), Log: a.log,
	})
	cidrs := prefixes(a.cfg.PodCIDR)
	if n, err := a.nodes.Get(a.cfg.NodeName); err == nil && n != nil {
		a.saved.Store(n)
		if len(cidrs) == 0 {
			cidrs = prefixes(n.Spec.PodCIDRs...)
		}
	}
	if len(cidrs) == 0 {
		return nil // the Node object will tell
	}
	return a.network.SetPodCIDRs(cidrs)
}

func (a *agent) runtimeConfig() runtime.Config {
	return runtime.Config{
		DataDir: a.cfg.DataDir, RunDir: a.cfg.RunDir, ImportDir: a.cfg.ImagesDir, CertsDir: a.cfg.RegistryConfigDir,
		CgroupRoot: a.kubepods(), Network: podNetwork{a.network}, Log: a.log,
	}
}

func (a *agent) buildRuntime(ctx context.Context) error {
	if a.cfg.ContainerRuntimeEndpoint != "" {
		return a.connectRuntime(ctx)
	}
	var err error
	if a.cgroups, err = cgroup.New(""); err != nil {
		return err
	}
	if err := a.qosGroups(); err != nil {
		return err
	}
	if a.builtin, err = runtime.Open(ctx, a.runtimeConfig()); err != nil {
		return err
	}
	a.runtime, a.images = a.builtin, a.builtin
	a.releaseNetwork(ctx)
	return a.readVersion(ctx)
}

// releaseNetwork frees the addresses and interfaces of sandboxes that a crash
// or a reboot took.
func (a *agent) releaseNetwork(ctx context.Context) {
	sandboxes, err := a.runtime.ListPodSandbox(ctx, nil)
	ids := make([]string, len(sandboxes))
	for i, s := range sandboxes {
		ids[i] = s.Id
	}
	if err == nil {
		err = a.network.Release(ctx, ids)
	}
	if err != nil {
		a.log.Warn("addresses of lost sandboxes are not freed", "error", err)
	}
}

// qosGroups makes the groups that pods lie in. All pods together get what the
// node can give (node allocatable).
func (a *agent) qosGroups() error {
	_, allocatable := node.Capacity(a.facts, a.cfg.MaxPods, a.reserved())
	memory := allocatable.Memory().Value()
	shares := uint64(pod.Shares(allocatable.Cpu().MilliValue()))
	if err := a.cgroups.Ensure(a.kubepods(), cgroup.Resources{CPUShares: &shares, MemoryLimit: &memory}); err != nil {
		return fmt.Errorf("cgroup of all pods: %w", err)
	}
	least := uint64(2)
	return errors.Join(a.cgroups.Ensure(filepath.Join(a.kubepods(), "burstable"), cgroup.Resources{}),
		a.cgroups.Ensure(filepath.Join(a.kubepods(), "besteffort"), cgroup.Resources{CPUShares: &least}))
}

// reserved is what the system and the agent keep for themselves.
func (a *agent) reserved() v1.ResourceList {
	out := v1.ResourceList{}
	for _, m := range []map[string]string{a.cfg.SystemReserved, a.cfg.KubeReserved} {
		for k, v := range m {
			q, err := resource.ParseQuantity(v)
			if err != nil {
				continue // validated before
			}
			sum := out[v1.ResourceName(k)]
			sum.Add(q)
			out[v1.ResourceName(k)] = sum
		}
	}
	return out
}

func (a *agent) readVersion(ctx context.Context) error {
	v, err := a.runtime.Version(ctx, "v1")
	if err != nil {
		return fmt.Errorf("container runtime: %w", err)
	}
	a.version = v.RuntimeName + "://" + v.RuntimeVersion
	return nil
}

func (a *agent) buildGossip(context.Context) error {
	if a.cfg.GossipPort == 0 {
		return nil
	}
	key, err := gossipKey(a.cfg.GossipKeyFile)
	if err != nil {
		return err
	}
	meta := gossip.Meta{Role: gossip.RoleAgent}
	for _, ip := range a.facts.IPs {
		if addr, err := netip.ParseAddr(ip); err == nil {
			meta.NodeIPs = append(meta.NodeIPs, addr)
		}
	}
	a.gossip, err = gossip.New(gossip.Config{Name: a.cfg.NodeName, BindPort: a.cfg.GossipPort, AdvertiseAddr: a.facts.IPs[0],
		Join: a.cfg.Join, Key: key, Meta: meta, Log: a.log})
	return err
}

func (a *agent) buildServices(context.Context) error {
	a.services = service.NewSource(service.Config{Client: a.client, Node: a.cfg.NodeName,
		File: filepath.Join(a.cfg.CheckpointDir(), "services.json"), Log: a.log})
	return nil
}

// servicesWait is how long a container's start waits for the services to be
// known: right after the agent's start they are on their way.
const servicesWait = 5 * time.Second

// serviceObjects gives the services in the form that environments are made of.
func (a *agent) serviceObjects(ctx context.Context) ([]*v1.Service, bool) {
	tables := a.services.Tables()
	if tables == nil {
		changed := a.services.Changed()
		late := time.After(servicesWait)
		for tables = a.services.Tables(); tables == nil; tables = a.services.Tables() {
			select {
			case <-ctx.Done():
				return nil, false
			case <-late:
				return nil, a.cutOff.Load() // then none beats not starting
			case <-changed:
			}
		}
	}
	out := make([]*v1.Service, 0, len(tables))
	for key, s := range tables {
		if len(s.ClusterIPs) == 0 {
			continue
		}
		o := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
		o.Spec.ClusterIP = s.ClusterIPs[0].String()
		for _, p := range s.Ports {
			o.Spec.Ports = append(o.Spec.Ports, v1.ServicePort{Name: p.Name, Protocol: v1.Protocol(p.Protocol), Port: int32(p.Number)})
		}
		out = append(out, o)
	}
	return out, true
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
	}
	a.volumes = &volume.Manager{RootDir: a.cfg.RootDir, Objects: a.objects, Tokens: a.tokens, Facts: a.volumeFacts, Log: a.log}
	a.probes = &probe.Manager{Exec: a.runtime, Events: a.events, Report: func(r probe.Result) { a.pods.Probed(r) }}
	a.status = &status.Manager{API: statusAPI{a.client}, Facts: a.statusFacts, Mirror: func(p *v1.Pod) (*v1.Pod, bool) { return a.static.Mirror(p) }, Log: a.log}
	sysctls, err := pod.NewSysctls(a.cfg.AllowedUnsafeSysctls)
	if err != nil {
		return fmt.Errorf("allowedUnsafeSysctls: %w", err)
	}
	a.pods = &pod.Manager{
		Host: host, Runtime: a.runtime, Images: a.images, Volumes: a.volumes, Objects: a.objects, Services: a.serviceObjects,
		Probes: a.probes, Reporter: a.status, Records: a.records, Events: a.events, Node: a.admissionNode, Relabelled: a.volumes.Refresh,
		Limit: a.limitPod, Sysctls: sysctls,
		MaxBackoff: a.cfg.MaxContainerRestartPeriod.Duration, Log: a.log,
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
		a.volumes.Changed(ctx, namespace)
	}
	a.objects.Start(ctx)
	a.probes.Start(ctx)
	a.status.Start(ctx)
	return nil
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

func (a *agent) statusFacts(p *v1.Pod) status.Facts {
	scheme, _, _ := cut(a.version)
	return status.Facts{HostIPs: a.facts.IPs, Scheme: scheme + "://", QOS: pod.QoS(p), Restarts: pod.Restarts, Now: metav1.Now().Rfc3339Copy()}
}

func (a *agent) nodeUID() types.UID {
	if n := a.node.Node(); n != nil {
		return n.UID
	}
	return ""
}

// admissionNode is the Node as the API has it, or as it was last known.
func (a *agent) admissionNode() *v1.Node {
	if a.node != nil {
		if n := a.node.Node(); n != nil {
			return n
		}
	}
	return a.saved.Load()
}

func (a *agent) buildNode(context.Context) error {
	a.node = &node.Manager{Client: a.client, Name: a.cfg.NodeName, Input: a.nodeInput, LeaseSeconds: a.cfg.NodeLeaseDurationSeconds,
		Report: a.cfg.NodeStatusReportFrequency.Duration, Seen: a.nodeSeen, Log: a.log,
		Event: func(kind, reason, message string) { a.events.node(a.cfg.NodeName, kind, reason, message) }}
	return nil
}

// nodeSeen takes the Node's newest version: its pod network most of all.
func (a *agent) nodeSeen(n *v1.Node) {
	old := a.saved.Swap(n)
	kept := &v1.Node{ObjectMeta: n.ObjectMeta, Spec: n.Spec}
	if err := a.nodes.Put(n.Name, kept); err != nil {
		a.log.Warn("the node is not kept for when the API is away", "error", err)
	}
	if zone := n.Labels[v1.LabelTopologyZone]; zone != "" {
		a.services.SetZone(zone)
	}
	cidrs := prefixes(n.Spec.PodCIDRs...)
	if a.cfg.PodCIDR != "" {
		cidrs = prefixes(a.cfg.PodCIDR)
	}
	if len(cidrs) == 0 {
		return
	}
	if err := a.network.SetPodCIDRs(cidrs); err != nil {
		a.log.Warn("the pod network cannot be made", "cidrs", cidrs, "error", err)
	}
	if old == nil || !slices.Equal(old.Spec.PodCIDRs, n.Spec.PodCIDRs) {
		a.node.Poke() // Ready waited for this
	}
	if a.gossip != nil {
		if err := a.gossip.UpdateMeta(func(m *gossip.Meta) { m.PodCIDRs, m.Zone = cidrs, n.Labels[v1.LabelTopologyZone] }); err != nil {
			a.log.Warn("other nodes are not told of the pod network", "error", err)
		}
	}
}

// nodeInput gathers what the Node says now.
func (a *agent) nodeInput(ctx context.Context) node.Input {
	in := node.Input{Name: a.cfg.NodeName, Facts: a.facts, Labels: a.cfg.NodeLabels, MaxPods: a.cfg.MaxPods, Port: a.cfg.Port,
		Reserved: a.reserved(), Runtime: a.version, Now: metav1.Now().Rfc3339Copy(), Taints: taints(a.cfg.RegisterWithTaints),
		Pressure: a.pressure()}
	if a.leaving.Load() {
		in.NotReady = "node is shutting down"
		return in
	}
	st, err := a.runtime.Status(ctx, false)
	if err != nil {
		in.NotReady = "container runtime is down: " + err.Error()
		return in
	}
	for _, c := range st.GetStatus().GetConditions() {
		if c.Status {
			continue
		}
		what := "container runtime not ready"
		if c.Type == runtimeapi.NetworkReady {
			what = "container runtime network not ready"
		}
		if c.Type == runtimeapi.NetworkReady || c.Type == runtimeapi.RuntimeReady {
			in.NotReady = fmt.Sprintf("%s: %s=false reason:%s message:%s", what, c.Type, c.Reason, c.Message)
		}
	}
	in.Images = a.nodeImages(ctx)
	return in
}

func (a *agent) nodeImages(ctx context.Context) []v1.ContainerImage {
	list, err := a.images.ListImages(ctx, nil)
	if err != nil {
		return nil
	}
	return node.Images(list, a.cfg.NodeStatusMaxImages)
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

// tasks is what runs as long as the agent.
func (a *agent) tasks() []task {
	list := []task{
		{"pods", a.pods.Run},
		{"static pods", a.static.Run},
		{"volumes", a.volumes.Run},
		{"services", a.services.Run},
		{"offline start", a.unhold},
	}
	if a.builtin != nil {
		list = append(list, task{"container runtime", a.builtin.Run})
	}
	if a.client != nil {
		list = append(list, task{"pods of this node", a.api.Run}, task{"node", a.node.Run})
	}
	if a.gossip != nil {
		list = append(list, task{"gossip", a.gossip.Run}, task{"backends", a.avoidDead},
			task{"routes", func(ctx context.Context) error { return a.network.Run(ctx, a.gossip) }})
	}
	if a.cfg.Proxy() {
		list = append(list, task{"proxy", func(ctx context.Context) error { return a.proxy().Run(ctx, a.services) }})
		if len(a.cfg.ClusterDNS) > 0 {
			list = append(list, task{"dns", func(ctx context.Context) error { return a.dns().Run(ctx) }})
		}
	}
	if a.cfg.ShutdownGracePeriod.Duration > 0 {
		list = append(list, task{"shutdown", a.leave})
	}
	if a.cfg.Port > 0 {
		list = append(list, task{"kubelet API", a.serve})
	}
	list = append(list, task{"memory", func(ctx context.Context) error { trim.Run(ctx); return nil }})
	return append(list, task{"log rotation", a.rotate}, task{"watchdog", watchdog})
}

func (a *agent) proxy() *proxy.Proxy {
	return proxy.New(proxy.Config{Table: a.cfg.NFTable, ServiceCIDRs: prefixes(a.cfg.ServiceCIDR), ClusterCIDRs: prefixes(a.cfg.ClusterCIDR), Log: a.log})
}

func (a *agent) dns() *dns.Server {
	var addrs []netip.Addr
	for _, s := range a.cfg.ClusterDNS {
		if ip, err := netip.ParseAddr(s); err == nil {
			addrs = append(addrs, ip)
		}
	}
	return dns.New(dns.Config{Addrs: addrs, Domain: a.cfg.ClusterDomain, ResolvConf: a.cfg.ResolvConf, Log: a.log}, a.services)
}

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

// avoidDead keeps traffic from nodes that the gossip calls dead or leaving.
func (a *agent) avoidDead(ctx context.Context) error {
	changed := a.gossip.Changed()
	for {
		down := map[string]bool{}
		for _, m := range a.gossip.Members() {
			if m.Role == gossip.RoleAgent && m.State != gossip.StateAlive {
				down[m.Name] = true
			}
		}
		a.services.SetDown(down)
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

func (a *agent) close() {
	a.records.Close()
	a.nodes.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := a.runtime.Close(ctx); err != nil {
		a.log.Warn("container runtime is not closed in order", "error", err)
	}
}

// recorder writes events as the kubelet's.
type recorder struct{ record.EventRecorder }

func newRecorder(ctx context.Context, client kubernetes.Interface, nodeName string) *recorder {
	b := record.NewBroadcaster(record.WithContext(ctx))
	b.StartRecordingToSink(eventSink{client})
	return &recorder{b.NewRecorder(eventScheme, v1.EventSource{Component: "kubelet", Host: nodeName})}
}

// Event tells of a pod, or one container of it.
func (r *recorder) Event(p *v1.Pod, container, kind, reason, message string) {
	if r.EventRecorder == nil || p.Name == "" {
		return
	}
	ref := &v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion}
	if container != "" {
		ref.FieldPath = fieldPath(p, container)
	}
	r.EventRecorder.Event(ref, kind, reason, message)
}

func (r *recorder) node(name, kind, reason, message string) {
	if r.EventRecorder != nil {
		r.EventRecorder.Event(&v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: name, UID: types.UID(name)}, kind, reason, message)
	}
}

func fieldPath(p *v1.Pod, container string) string {
	for i := range p.Spec.InitContainers {
		if p.Spec.InitContainers[i].Name == container {
			return "spec.initContainers{" + container + "}"
		}
	}
	for i := range p.Spec.EphemeralContainers {
		if p.Spec.EphemeralContainers[i].Name == container {
			return "spec.ephemeralContainers{" + container + "}"
		}
	}
	return "spec.containers{" + container + "}"
}
