package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/agent/announce"
	"github.com/shoal-project/shoal/agent/api"
	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/dns"
	"github.com/shoal-project/shoal/agent/evict"
	"github.com/shoal-project/shoal/agent/fence"
	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/agent/image/peer"
	"github.com/shoal-project/shoal/agent/metrics"
	"github.com/shoal-project/shoal/agent/node"
	"github.com/shoal-project/shoal/agent/plugins"
	"github.com/shoal-project/shoal/agent/problem"
	"github.com/shoal-project/shoal/agent/process"
	"github.com/shoal-project/shoal/agent/reverse"
	"github.com/shoal-project/shoal/agent/selinux"
	"github.com/shoal-project/shoal/agent/server"
	"github.com/shoal-project/shoal/agent/service"
	"github.com/shoal-project/shoal/agent/tracing"
	"github.com/shoal-project/shoal/agent/volume"
	"github.com/shoal-project/shoal/agent/withdraw"
	"github.com/shoal-project/shoal/cni/cidr"
	"github.com/shoal-project/shoal/cni/foreign"
	"github.com/shoal-project/shoal/csi"
)

// task is something that runs as long as the agent.
type task struct {
	name string
	run  func(context.Context) error
}

// run builds the agent and runs it until ctx ends; pods are left running.
func run(ctx context.Context, cfg *config.Config, log *slog.Logger) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	manager, err := process.TakeServiceManager()
	if err != nil {
		return err
	}
	tasks, closeAll, err := build(ctx, cancel, cfg, manager, log)
	if err != nil {
		return err
	}
	defer closeAll()
	var wg sync.WaitGroup
	start(ctx, &wg, tasks, cancel)
	untilEnd(ctx, manager)
	wait(&wg, patience(cfg))
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// start runs tasks until ctx ends; the first that fails ends all.
func start(ctx context.Context, wg *sync.WaitGroup, tasks []task, cancel context.CancelCauseFunc) {
	for _, t := range tasks {
		wg.Go(func() {
			if err := t.run(ctx); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("%s: %w", t.name, err))
			}
		})
	}
}

// untilEnd waits for the end of ctx; the service manager is told that the process
// is up, and that it ends.
func untilEnd(ctx context.Context, manager process.ServiceManager) {
	manager.Ready()
	<-ctx.Done()
	manager.Stopping()
}

// stopWait is how long tasks may take to end. client-go's watches do not hear
// of the end while they pause between tries.
const stopWait = time.Second

// patience is longer for a node that leaves: it takes leave of its neighbours.
func patience(cfg *config.Config) time.Duration {
	if leaves(cfg) {
		return leaveWait
	}
	return stopWait
}

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

// connect reads the kubeconfig; nothing is sent yet.
func connect(cfg *config.Config, counts *metrics.Agent, log *slog.Logger) (*api.Server, error) {
	rc, err := api.Load(cfg.Kubeconfig, userAgent)
	if err != nil {
		return nil, err
	}
	return api.Connect(api.Config{
		Rest:       rc,
		Kubeconfig: cfg.Kubeconfig,
		NodeName:   cfg.NodeName,
		Rotated:    cfg.RotatedCertificate(),

		Authorities: cfg.ClusterCAs(),
		Known:       filepath.Join(cfg.DataDir, "coordinators.json"),
		Failed:      counts.ClientCertificateErrors.Increment,
		Log:         log,
	})
}

var userAgent = "kubelet/" + node.Version + " shoal-agent"

// build makes every part, in the order in which they need each other, and returns
// what runs as long as the agent, and what closes it. A part may end the agent.
func build(
	ctx context.Context, end context.CancelCauseFunc, cfg *config.Config, manager process.ServiceManager,
	log *slog.Logger,
) ([]task, func(), error) {
	if err := stopOverdue(cfg, host.BootID(), log); err != nil { // before all that takes time or fails
		return nil, nil, err
	}
	if err := makeDirs(cfg); err != nil {
		return nil, nil, err
	}
	kept, err := openStores(cfg, log)
	if err != nil {
		return nil, nil, err
	}
	memory := node.Remember(kept.nodes, cfg.NodeName, log)
	if adoptRanges(cfg, memory.Node(), log) {
		log.Info("the cluster has more ranges than the configuration", "clusterCIDR", cfg.ClusterCIDR,
			"serviceCIDR", cfg.ServiceCIDR, "clusterDNS", cfg.ClusterDNS)
	}
	facts, err := host.Look(cfg.RootDir, cfg.NodeIP, familiesOf(cfg)...)
	if err != nil {
		return nil, nil, err
	}
	counts := metrics.NewAgent()
	countRequests(counts)
	server, err := connect(cfg, counts, log)
	if err != nil {
		return nil, nil, err
	}
	if err := beOnlyMachine(ctx, cfg, facts, kept.seal, server, log); err != nil {
		return nil, nil, err
	}
	others := &foreign.Watcher{Bridge: cfg.Bridge}
	links, err := openNetwork(cfg, memory, others, log)
	if err != nil {
		return nil, nil, err
	}
	spans, err := newTracer(ctx, cfg, log)
	if err != nil {
		return nil, nil, err
	}
	limits := openQuotas(cfg, log)
	guard, err := newGuard(cfg, server, facts.BootID, log)
	if err != nil {
		return nil, nil, err
	}
	runtime, err := openContainers(ctx, cfg, facts, links.network, limits.layers, memory, kept, spans, guard, log)
	if err != nil {
		return nil, nil, err
	}
	if err := kept.seal.Remember(spareKey(cfg)); err != nil {
		log.Warn("if the key of records is lost, containers are ended with it", "err", err)
	}
	runtime = runtime.counted(counts, spans)
	cfg.CgroupDriver = string(runtime.tree.Driver) // an outside runtime's counts
	said := &answers{
		votes:   fence.NewVoter(),
		shares:  sharesLayers(cfg, server, runtime.builtin),
		tunnels: links.network.Answer,
	}
	group, err := newGossip(cfg, facts, server, memory, said, log)
	if err != nil {
		return nil, nil, err
	}
	layers, err := newPeers(cfg, server, group, runtime.builtin, counts, log)
	if err != nil {
		return nil, nil, err
	}
	said.layers.Store(layers)
	vouchBy(guard, cfg.NodeName, group)
	services := newServices(cfg, facts, server, log)
	ends := newWithdrawals(cfg, group, log)
	said.endpoints.Store(ends)
	objects, tokens := newObjects(kept, server, log)
	storage := newStorageObjects(ctx, server, log)
	shown := newCSINode(cfg, server, log)
	drivers := newDrivers(shown, counts)
	claims, err := newClaims(cfg, server, kept.claims, facts.BootID, counts, log)
	if err != nil {
		return nil, nil, err
	}
	devices, err := newDevices(cfg, kept, facts.BootID, counts, log)
	if err != nil {
		return nil, nil, err
	}
	share, err := newExact(cfg, facts, kept, devices, runtime, counts, log)
	if err != nil {
		return nil, nil, err
	}
	events := server.Recorder(ctx)
	var leaving atomic.Bool
	var self *node.Manager // the last, for it tells of the others
	b := base{
		cfg:        cfg,
		facts:      facts,
		server:     server,
		events:     events,
		kept:       kept,
		memory:     memory,
		objects:    objects,
		tokens:     tokens,
		runtime:    runtime,
		claims:     claims,
		exact:      share,
		guard:      guard,
		services:   services,
		counts:     counts,
		spans:      spans,
		ownNetwork: byOwnNetwork(cfg, links.network),
		foreign:    others,
		makeVolumes: func(of func(*corev1.Pod) volume.Facts) *volume.Manager {
			return &volume.Manager{
				RootDir: cfg.RootDir,
				Boot:    facts.BootID,
				Objects: objects,
				Tokens:  tokens,
				Claims:  objects,
				Records: kept.volumes,
				Quotas:  limits.volumes,
				Memory:  memoryOfPods(cfg, facts),
				Labels:  selinux.New(),
				Facts:   of,
				Log:     log,

				Drivers:      drivers,
				Storage:      storage,
				NodeName:     cfg.NodeName,
				InUseChanged: func() { self.Poke() },
				Exhausted:    func(ctx context.Context, driver string) { askAgain(ctx, drivers, driver, log) },
				Event:        events.Event,
				Health:       cfg.VolumeHealth,
				Operations:   counts.Storage,
			}
		},
		leaving: leaving.Load,
		nodeUID: func() types.UID { return self.UID() },
		log:     log,
	}
	p, err := newPods(ctx, b)
	if err != nil {
		return nil, nil, err
	}
	withdrawPods(b, ends, p.pods)
	storage.Silent = p.offline.Silent
	refresher := newRefresher(drivers, storage, log)
	storage.Changed = func() {
		p.volumes.Attachable()
		refresher.Changed()
	}
	drivers.Changed = func() {
		p.volumes.DriversChanged()
		refresher.Changed()
	}
	show, err := chooseCertificate(cfg, facts, server, log)
	if show.manager != nil {
		show.manager.Failures = counts.ServerCertificateErrors
	}
	if err != nil {
		return nil, nil, err
	}
	links.cidrs.Changed = func(list cidr.Prefixes) {
		runtime.told(context.Background(), list.Text()) // bounded by the client's timeout
		self.Poke()                                     // Ready waited for this
	}
	listeners := []listener{memory.Keep, zone(services), links.cidrs.Heed, p.volumes.HeedNode}
	if shown != nil {
		listeners = append(listeners, shown.Heed)
	}
	upgrades := newUpgrader(log)
	reboots := newRebooter(server.Client, cfg.NodeName, facts.BootID, log)
	further := rangesWatch{cfg, memory.Kept, end, log}
	listeners = append(listeners, upgrades.Heed, reboots.Heed, further.Heed)
	if group != nil {
		listeners = append(listeners, membership(group))
	}
	announcer := newAnnouncer(cfg, services, group, counts, log)
	if announcer != nil {
		listeners = append(listeners, excluded(announcer))
	}
	if show.manager != nil {
		listeners = append(listeners, addresses(show.manager))
	}
	eviction, images, err := newEviction(ctx, b, p, func() { self.Poke() })
	if err != nil {
		return nil, nil, err
	}
	followDevices(devices, p.pods, func() { self.Poke() })
	share.follow(p.pods)
	eviction.Observe()
	p.pods.Pressure = eviction.Conditions
	if p.policies == nil {
		dropPolicies(cfg, log)
	}
	problems := newProblems(b, func() { self.Poke() }, clockSet(p, links.network, show.manager))
	self = newNode(b, nodeParts{
		pressure:  eviction.Conditions,
		problems:  problems.Conditions,
		group:     group,
		pods:      p.pods.Active,
		inUse:     p.volumes.VolumesInUse,
		listeners: listeners,
		gateways:  answersGateways(cfg),
	})
	server.SetDated(problems.Dated)
	if err := p.takeOver(ctx, b); err != nil {
		return nil, nil, err
	}
	n := whole{base: b, podParts: p, links: links, group: group, layers: layers, node: self, certificate: show,
		csiNode: shown, eviction: eviction, images: images, problems: problems, upgrades: upgrades, reboots: reboots,
		ends: ends, plugins: newPlugins(b, drivers), refresher: refresher, drivers: drivers,
		local: openLocalStorage(cfg, log), announcer: announcer}
	list, err := n.tasks(manager, func(leaves bool) {
		leaving.Store(leaves)
		n.tellLeaving(leaves)
	})
	return list, func() {
		share.close()
		closeAll(kept, runtime, links, spans, log)
	}, err
}

// newTracer is nil unless the configuration has something traced.
func newTracer(ctx context.Context, cfg *config.Config, log *slog.Logger) (*tracing.Tracer, error) {
	if cfg.Tracing == nil {
		return nil, nil
	}
	return tracing.New(ctx, tracing.Config{
		Endpoint:   cfg.Tracing.Endpoint,
		PerMillion: cfg.Tracing.SamplingRatePerMillion,
		Node:       cfg.NodeName,
		Log:        log,
	})
}

func closeAll(kept stores, runtime containers, links links, spans *tracing.Tracer, log *slog.Logger) {
	kept.close()
	defer links.claim.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	defer func() { _ = spans.Close(ctx) }() // what is not sent by now is lost
	if err := runtime.Close(ctx); err != nil {
		log.Warn("container runtime is not closed in order", "err", err)
	}
	links.network.Close()
}

// whole is a node whose parts are all made.
type whole struct {
	base
	*podParts
	links
	certificate
	group   *gossip.Group // nil without a port for it
	layers  *peer.Peers   // nil: layers of images are not shared
	node    *node.Manager
	ends    *withdraw.Manager // nil where the proxy is another's
	kubelet *server.Server    // nil without a port for it
	reverse *reverse.Keeper   // nil: whoever wants the kubelet's API dials it
	// csiNode is nil without an API.
	csiNode *node.CSINode
	plugins *plugins.Watcher
	// refresher asks storage drivers again.
	refresher *csi.Refresher
	drivers   *csi.Drivers
	// local is nil without the storage driver that ships with Shoal.
	local    *localStorage
	eviction *evict.Node
	images   *evict.Images
	problems *problem.Watcher
	upgrades *upgrader
	reboots  *rebooter
	// announcer is nil without gossip.
	announcer *announce.Announcer
}

// tasks is what runs as long as the agent.
func (n whole) tasks(manager process.ServiceManager, leaving func(bool)) ([]task, error) {
	if n.cfg.Port != 0 {
		var err error
		if n.kubelet, err = newServer(n.base, n.podParts, n.group, n.show); err != nil {
			return nil, err
		}
		if n.server.Configured() {
			n.kubelet.Authorities = n.authorities
		}
		if n.layers != nil {
			n.kubelet.Layers = n.layers
		}
		if n.reverse = newReverse(n.base, n.group); n.reverse != nil {
			n.kubelet.Reverse = n.reverse.To
		}
	}
	list := []task{
		{"pods", n.pods.Run},
		{"static pods", n.static.Run},
		{"volumes", n.volumes.Run},
		{"plugins", n.plugins.Run},
		{"storage drivers", n.refresher.Run},
		{"device drivers", n.claims.Drivers.Run},
		{"device plugins", n.exact.plugged.Run},
		{"pod resources", newPodResources(n.base, n.pods).Run},
		{"services", n.services.Run},
		{"firewalld", n.firewalld.Run},
		{"offline start", func(ctx context.Context) error { return n.offline.Run(ctx, n.pods) }},
		{"log rotation", n.rotator.Run},
		{"logs of pods that are gone", n.past.Run},
		{"limits of local storage", newStorage(n.base, n.podParts).Run},
		{"eviction", n.eviction.Run},
		{"unused images", n.images.Run},
		{"memory", func(ctx context.Context) error { process.Trim(ctx); return nil }},
		{"watchdog", func(ctx context.Context) error {
			manager.KeepAlive(ctx, func(context.Context) bool {
				n.pods.Pods() // does not return when the pods' workers are stuck
				return true
			})
			return nil
		}},
	}
	if r := n.runtime.builtin; r != nil {
		list = append(list, task{"container runtime", r.Run}, task{"pod network", func(ctx context.Context) error {
			return n.network.Follow(ctx, r, n.node.Poke)
		}})
	}
	if n.api != nil {
		list = append(list, task{"pods of this node", n.api.Run}, task{"node", n.node.Run},
			task{"CSINode", n.csiNode.Run}, task{"credentials", n.followCredentials},
			task{"client certificate", n.server.Renew}, task{"cluster CA", n.server.FollowAuthorities},
			task{"upgrades", n.upgrades.Run}, task{"reboots", n.reboots.Run}, task{"problems", n.problems.Run})
	}
	if n.policies != nil {
		list = append(list, task{"network policies", n.policies.Run})
	}
	if n.guard != nil {
		list = append(list, task{"fence", n.guard.Run})
	}
	if n.exact.pool != nil {
		list = append(list, task{"CPUs of containers", n.exact.run})
	}
	if n.local != nil {
		list = append(list, n.local.tasks(n.base, n.drivers, n.volumes.TellHealth)...)
	}
	if host.FindsAddress(n.cfg.NodeIP) {
		list = append(list, task{"address of the node", n.followAddress})
	}
	if n.ownNetwork != nil || n.cfg.Proxy() {
		list = append(list, task{"changes by others", n.followOthers})
	}
	if n.group != nil {
		list = append(list, n.gossipTasks()...)
	}
	if n.layers != nil {
		list = append(list, task{"layers of images", n.layers.Run})
	}
	if n.cfg.Proxy() {
		list = append(list, n.serviceTasks()...)
	}
	if periods := shutdownPeriods(n.cfg); len(periods) > 0 {
		list = append(list, task{"shutdown", newShutdown(n.base, n.podParts, periods, leaving).Run})
	}
	if n.manager != nil {
		list = append(list, task{"serving certificate", n.manager.Run})
	}
	if n.kubelet != nil {
		if n.reverse != nil {
			list = append(list, task{"connections of coordinators", n.reverse.Run})
		}
		list = append(list, task{"kubelet API", n.kubelet.Run})
	}
	return list, nil
}

// followAddress ends the agent once this machine has another address than it began with: who
// started it starts it again, with the one of now. Pods run on.
func (n whole) followAddress(ctx context.Context) error {
	had := addrs(n.facts.IPs)
	now, err := process.Moved(ctx, had, func() ([]netip.Addr, error) {
		facts, err := host.Look(n.cfg.RootDir, "", familiesOf(n.cfg)...)
		return addrs(facts.IPs), err
	})
	if err != nil {
		n.log.Warn("a change of this machine's address is found at the next start only", "err", err)
		return nil
	}
	if len(now) > 0 {
		return fmt.Errorf("this machine has the address %v now, instead of %v: the agent starts again with it", now, had)
	}
	return nil
}

// followOthers tells what other programs do to the network. Where the kernel does not tell,
// each looks from time to time.
func (n whole) followOthers(ctx context.Context) error {
	if err := n.foreign.Run(ctx); err != nil {
		n.log.Warn("what other programs change of the network is found later", "err", err)
	}
	return nil
}

func (n whole) gossipTasks() []task {
	list := []task{
		{"gossip", func(ctx context.Context) error { return runGossip(ctx, n.cfg, n.group) }},
		{"view of the gossip", func(ctx context.Context) error {
			return n.group.ServeView(ctx, filepath.Join(n.cfg.RunDir, gossip.ViewSocket))
		}},
		{"backends", func(ctx context.Context) error {
			return n.services.FollowMembers(ctx, n.group, addrs(n.facts.IPs))
		}},
		{"routes", func(ctx context.Context) error { return n.network.Run(ctx, n.group) }},
	}
	if n.server.Configured() {
		list = append(list, task{"coordinators", n.followCoordinators})
	}
	if n.announcer != nil {
		list = append(list, task{"addresses of load balancers", n.announcer.Run})
	}
	return list
}

func (n whole) serviceTasks() []task {
	gateways := n.newGateways()
	status := withGateways(proxyStatus(n.base), gateways)
	programmed := func(t *service.Tables) { n.ends.Programmed(withdraw.Kernel, t) }
	list := []task{{"proxy", func(ctx context.Context) error {
		p := newProxy(n.cfg, n.facts, n.group, n.counts, status, programmed, n.foreign, n.log)
		return p.Run(ctx, n.services)
	}}}
	if gateways != nil {
		list = append(list, task{"gateways", gateways.Run})
	}
	if len(n.cfg.ClusterDNS) == 0 {
		return list
	}
	counts := dns.NewCounts(n.cfg.ClusterDomain)
	n.counts.DNS = counts
	asking := clients{pods: n.podRanges, search: n.searchDomains}
	names := newDNS(n.cfg, n.services, asking, counts, n.foreign, n.log)
	return append(list, task{"dns", names.Run}, task{"servers of names", followDNS(n.base, names).Run})
}

// podRanges are where this node's pods send from: the range that the Node has, and
// each pod's address, as a third-party network may give others.
func (n whole) podRanges() cidr.Prefixes {
	list := slices.Clone(n.cidrs.Of(n.memory.Node()))
	for _, ip := range n.pods.Addresses() {
		list = append(list, netip.PrefixFrom(ip, ip.BitLen()))
	}
	return list
}

// tellLeaving tells neighbours and the API that the node goes, or stays after all.
func (n whole) tellLeaving(leaves bool) {
	n.node.Poke()
	message := "Shutdown manager detected shutdown event"
	if !leaves {
		message = "Shutdown manager detected shutdown cancellation"
	}
	n.events.Node(corev1.EventTypeNormal, "Shutdown", message)
	if n.group != nil {
		n.group.SetLeaving(leaves)
	}
}
