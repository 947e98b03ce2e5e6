package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/shoal-project/shoal/agent/api"
	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/device/dra"
	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/agent/hollow"
	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/agent/metrics"
	"github.com/shoal-project/shoal/agent/node"
	"github.com/shoal-project/shoal/agent/pod"
	"github.com/shoal-project/shoal/agent/process"
	podrecord "github.com/shoal-project/shoal/agent/record"
	"github.com/shoal-project/shoal/agent/service"
	"github.com/shoal-project/shoal/agent/source"
	"github.com/shoal-project/shoal/agent/volume"
	"github.com/shoal-project/shoal/cni/cidr"
)

// This file plays many nodes in one process: each is an agent as wire.go makes
// it, but for what touches the kernel. Each has a connection of its own.

const (
	hollowLabel = "shoal-project.io/hollow"
	// networkWait is how long a hollow node waits for its pod network; then it
	// takes one that no other node has.
	networkWait = 5 * time.Second
)

// hollowPods is where nodes that are given no pod network take one.
var hollowPods = netip.MustParsePrefix("100.64.0.0/10")

// hollowNodes is the nodes of one process.
type hollowNodes struct {
	cfg     *config.Config
	log     *slog.Logger
	dir     string
	machine host.Facts
	wg      sync.WaitGroup
}

// runHollow plays nodes until ctx ends. Their objects stay in the API, as those
// of nodes that are cut off.
func runHollow(ctx context.Context, cfg *config.Config, log *slog.Logger) error {
	manager, err := process.TakeServiceManager()
	if err != nil {
		return err
	}
	dir, err := scratch()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	facts, err := host.Look(dir, cfg.NodeIP)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c := &hollowNodes{cfg: cfg, log: log, dir: dir, machine: facts}
	c.wg.Go(func() { c.startAll(ctx, cancel) })
	c.wg.Go(func() { process.Trim(ctx) })
	untilEnd(ctx, manager)
	wait(&c.wg, stopWait)
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// scratch makes a directory for the few files of pods, in memory if possible.
func scratch() (string, error) {
	const name = "shoal-hollow-"
	if dir, err := os.MkdirTemp("/dev/shm", name); err == nil {
		return dir, nil
	}
	return os.MkdirTemp("", name)
}

// startAll starts the nodes one by one, so that what they do at intervals does not
// fall together.
func (c *hollowNodes) startAll(ctx context.Context, cancel context.CancelCauseFunc) {
	n := c.cfg.Hollow.Nodes
	for i := range n {
		tasks, err := c.build(ctx, i)
		if err != nil {
			cancel(fmt.Errorf("hollow node %d: %w", i, err))
			return
		}
		start(ctx, &c.wg, tasks, cancel)
		select {
		case <-ctx.Done():
			return
		case <-time.After(c.cfg.Hollow.Ramp / time.Duration(n)):
		}
	}
	c.log.Info("all hollow nodes run", "nodes", n)
}

// amongFirst tells whether node i is among the first n; -1 means all.
func amongFirst(i, n int) bool { return n < 0 || i < n }

// build makes node i as wire.go does a real one, from other parts.
func (c *hollowNodes) build(ctx context.Context, i int) ([]task, error) {
	cfg, facts := c.config(i), c.facts(i)
	log := c.log.With("node", cfg.NodeName)
	server, admin, err := c.connect(cfg, log)
	if err != nil {
		return nil, err
	}
	kept := stores{
		pods:    hollow.Store[podrecord.Pod]{},
		nodes:   hollow.Store[corev1.Node]{},
		objects: hollow.Store[source.SavedObject]{},
		tokens:  volume.TokenTimes{InMemory: volume.InMemory{}},
	}
	var p *podParts
	var self *node.Manager
	rt := hollow.New(hollow.Config{
		StartDelay: c.cfg.Hollow.StartDelay,
		Lifetime:   func(uid, container string) time.Duration { return lifetime(p.pods, uid, container) },
	})
	version, err := versionOf(ctx, rt)
	if err != nil {
		return nil, err
	}
	var group *gossip.Group
	if amongFirst(i, c.cfg.Hollow.Gossip) {
		if group, err = c.joinGossip(ctx, cfg, admin, log); err != nil {
			return nil, err
		}
	}
	var services *service.Source
	if amongFirst(i, c.cfg.Hollow.Services) {
		services = service.NewSource(service.Config{Client: server.Client, Node: cfg.NodeName, Log: log})
	}
	objects, tokens := newObjects(kept, server, log)
	claims, err := newClaims(cfg, server, hollow.Store[dra.Claim]{}, facts.BootID, &metrics.Agent{}, log)
	if err != nil {
		return nil, err
	}
	b := base{
		cfg:      cfg,
		facts:    facts,
		server:   server,
		events:   server.Recorder(ctx),
		kept:     kept,
		memory:   node.Remember(kept.nodes, cfg.NodeName, log),
		claims:   claims,
		objects:  objects,
		tokens:   tokens,
		runtime:  containers{RuntimeService: rt, images: rt, brief: rt, version: version, tree: tree(cfg)},
		services: services,
		makeVolumes: func(of func(*corev1.Pod) volume.Facts) *volume.Manager {
			return volume.NewHollow(objects, tokens, of, log)
		},
		leaving: func() bool { return false },
		nodeUID: func() types.UID { return self.UID() },
		log:     log,
	}
	if p, err = newPods(ctx, b); err != nil {
		return nil, err
	}
	cidrs := &node.PodCIDRs{
		Configured: cidr.Parse(cfg.PodCIDR),
		Set:        rt.SetPodCIDRs,
		Changed:    func(cidr.Prefixes) { self.Poke() },
		Log:        log,
	}
	listeners := []listener{b.memory.Keep, cidrs.Heed}
	if services != nil {
		listeners = append(listeners, zone(services))
	}
	if group != nil {
		listeners = append(listeners, membership(group))
	}
	self = newNode(b, nodeParts{
		pressure:  func() map[corev1.NodeConditionType]bool { return nil },
		group:     group,
		pods:      p.pods.Active,
		listeners: listeners,
	})
	list := []task{
		{"pods", p.pods.Run},
		{"pods of this node", p.api.Run},
		{"node", self.Run},
		{"volumes", p.volumes.Run},
		{"pod network", func(ctx context.Context) error { return ownNetwork(ctx, rt, self, i) }},
	}
	if group != nil {
		list = append(list, task{"gossip", group.Run})
	}
	if services != nil {
		list = append(list, task{"services", services.Run})
	}
	if group != nil && services != nil {
		list = append(list, task{"backends", func(ctx context.Context) error {
			return services.FollowMembers(ctx, group, addrs(facts.IPs))
		}})
	}
	return list, p.takeOver(ctx, b)
}

func (c *hollowNodes) config(i int) *config.Config {
	cfg := *c.cfg
	cfg.NodeName = fmt.Sprintf("%s%d", cfg.Hollow.Prefix, i)
	cfg.RootDir, cfg.PodLogsDir, cfg.ContainerLogsDir = c.dir, filepath.Join(c.dir, "logs"), "-"
	cfg.ResolvConf = ""
	cfg.NodeLabels = maps.Clone(cfg.NodeLabels)
	if cfg.NodeLabels == nil {
		cfg.NodeLabels = map[string]string{}
	}
	cfg.NodeLabels[hollowLabel] = "true"
	if z := cfg.Hollow.Zones; z > 0 {
		cfg.NodeLabels[corev1.LabelTopologyZone] = fmt.Sprintf("zone-%d", i%z)
	}
	return &cfg
}

func (c *hollowNodes) facts(i int) host.Facts {
	h := &c.cfg.Hollow
	cpus, memory := resource.MustParse(h.CPU), resource.MustParse(h.Memory) // validated before
	id := fmt.Sprintf("%032x", i+1)
	return host.Facts{Hostname: fmt.Sprintf("%s%d", h.Prefix, i),
		IPs:  []string{nth(netip.MustParsePrefix(h.NodeCIDR), i+1).String()},
		CPUs: int(cpus.Value()), MemoryBytes: memory.Value(), DiskBytes: 100 << 30,
		MachineID: id, SystemUUID: id, BootID: id, Kernel: c.machine.Kernel, OSImage: "hollow"}
}

// nth is the n-th address after an IPv4 prefix's own.
func nth(p netip.Prefix, n int) netip.Addr {
	b := p.Masked().Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
	return netip.AddrFrom4(b)
}

// connect has client-go share no connection between nodes, and lets the node act
// in its own name; admin is the kubeconfig's own.
func (c *hollowNodes) connect(cfg *config.Config, log *slog.Logger) (_ *api.Server, admin *rest.Config, err error) {
	if admin, err = api.Load(cfg.Kubeconfig, userAgent); err != nil {
		return nil, nil, err
	}
	if admin == nil {
		return nil, nil, errors.New("hollow nodes need an API server: name its kubeconfig with --kubeconfig")
	}
	admin.Dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	own := rest.CopyConfig(admin)
	if cfg.Hollow.Impersonate {
		own.Impersonate = rest.ImpersonationConfig{
			UserName: "system:node:" + cfg.NodeName,
			Groups:   []string{"system:nodes", "system:authenticated"},
		}
	}
	server, err := api.Connect(api.Config{Rest: own, Kubeconfig: cfg.Kubeconfig, NodeName: cfg.NodeName, Log: log})
	return server, admin, err
}

// joinGossip makes a node a member under this machine's address, at any port.
func (c *hollowNodes) joinGossip(ctx context.Context, cfg *config.Config, admin *rest.Config,
	log *slog.Logger) (*gossip.Group, error) {
	g := gossip.Config{
		Name:          cfg.NodeName,
		BindPort:      -1,
		AdvertiseAddr: c.machine.IPs[0],
		Join:          cfg.Join,
		Meta:          gossip.Meta{Role: gossip.RoleAgent},
		Log:           log,
	}
	var err error
	if cfg.GossipKeyFile != "" {
		if g.Keys, err = gossip.LoadKeyring(cfg.GossipKeyFile); err != nil {
			return nil, err
		}
	}
	if !cfg.GossipInsecure {
		if g.Identity, g.Trust, err = identify(ctx, admin, cfg.NodeName); err != nil {
			return nil, fmt.Errorf("certificate for the gossip: %w", err)
		}
	}
	return gossip.New(g)
}

func identify(ctx context.Context, admin *rest.Config, name string) (*gossip.Identity, gossip.Trust, error) {
	client, err := kubernetes.NewForConfig(admin)
	if err != nil {
		return nil, nil, err
	}
	cert, key, err := hollow.RequestCertificate(ctx, client, name)
	if err != nil {
		return nil, nil, err
	}
	c := rest.CopyConfig(admin)
	if err := rest.LoadTLSFiles(c); err != nil {
		return nil, nil, err
	}
	return gossip.Identify(name, cert, key, c.CAData)
}

// ownNetwork gives node i a pod network when nobody else does.
func ownNetwork(ctx context.Context, rt *hollow.Runtime, self *node.Manager, i int) error {
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(networkWait):
	}
	if rt.HasNetwork() {
		return nil
	}
	if err := rt.SetPodCIDRs(cidr.Prefixes{netip.PrefixFrom(nth(hollowPods, i<<8), 24)}); err != nil {
		return err
	}
	self.Poke()
	return nil
}

func lifetime(pods *pod.Manager, uid, container string) time.Duration {
	v, ok := pods.View(types.UID(uid))
	if !ok {
		return 0
	}
	return hollow.Lifetime(v.Pod, container)
}
