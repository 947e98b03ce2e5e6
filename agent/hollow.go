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

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/agent/hollow"
	"github.com/shoal-project/shoal/agent/node"
	"github.com/shoal-project/shoal/agent/process"
	podrecord "github.com/shoal-project/shoal/agent/record"
	"github.com/shoal-project/shoal/agent/service"
	"github.com/shoal-project/shoal/agent/source"
	"github.com/shoal-project/shoal/agent/volume"
)

// This file plays many nodes in one process: each is an agent as wire.go makes
// it, but for what touches the kernel. Each has a connection of its own.

const (
	hollowLabel = "shoal-project.io/hollow"
	// runForAnnotation of a pod on a hollow node lets its containers end well
	// after that time.
	runForAnnotation = "hollow.shoal-project.io/run-for"
	// initTime is how long an init container runs.
	initTime = 10 * time.Millisecond
	// networkWait is how long a hollow node waits for its pod network; then it
	// takes one that no other node has.
	networkWait = 5 * time.Second
)

// hollowPods is where nodes that are given no pod network take one.
var hollowPods = netip.MustParsePrefix("100.64.0.0/10")

// crew is the nodes of one process.
type crew struct {
	cfg     *config.Config
	log     *slog.Logger
	dir     string
	machine node.Facts
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
	facts, err := node.Look(dir, cfg.NodeIP)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c := &crew{cfg: cfg, log: log, dir: dir, machine: facts}
	c.wg.Go(func() { c.raise(ctx, cancel) })
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

// raise starts the nodes one by one, so that what they do at intervals does not
// fall together.
func (c *crew) raise(ctx context.Context, cancel context.CancelCauseFunc) {
	n := c.cfg.Hollow.Nodes
	for i := range n {
		a, err := c.member(ctx, i)
		if err != nil {
			cancel(err)
			return
		}
		start(ctx, &c.wg, a.hollowTasks(i), cancel)
		select {
		case <-ctx.Done():
			return
		case <-time.After(c.cfg.Hollow.Ramp / time.Duration(n)):
		}
	}
	c.log.Info("all hollow nodes run", "nodes", n)
}

// of tells whether node i is among the first n; -1 means all.
func of(i, n int) bool { return n < 0 || i < n }

// member builds node i.
func (c *crew) member(ctx context.Context, i int) (*agent, error) {
	a := &agent{cfg: c.config(i), facts: c.facts(i), measure: func() map[v1.NodeConditionType]bool { return nil }}
	a.log = c.log.With("node", a.cfg.NodeName)
	a.adjust = a.ownConnection
	a.records, a.nodes = hollow.Store[podrecord.Pod]{}, hollow.Store[v1.Node]{}
	a.keep(hollow.Store[source.SavedObject]{}, hollow.Store[volume.PodTokens]{})
	a.volumes = &hollowVolumes{objects: a.objects, tokens: a.tokens, renewals: map[types.UID]*time.Timer{}}
	rt := hollow.New(hollow.Config{StartDelay: c.cfg.Hollow.StartDelay, Lifetime: a.lifetime})
	a.runtime, a.images, a.setPodCIDRs = rt, rt, rt.SetPodCIDRs
	parts := []func(context.Context) error{a.buildClient, a.readVersion}
	if of(i, c.cfg.Hollow.Gossip) {
		parts = append(parts, c.buildGossip(a))
	}
	if of(i, c.cfg.Hollow.Services) {
		parts = append(parts, a.watchServices)
	}
	for _, part := range append(parts, a.buildPods, a.buildNode, a.restore) {
		if err := part(ctx); err != nil {
			return nil, fmt.Errorf("hollow node %s: %w", a.cfg.NodeName, err)
		}
	}
	return a, nil
}

func (c *crew) config(i int) *config.Config {
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
		cfg.NodeLabels[v1.LabelTopologyZone] = fmt.Sprintf("zone-%d", i%z)
	}
	return &cfg
}

func (c *crew) facts(i int) node.Facts {
	h := &c.cfg.Hollow
	cpus, memory := resource.MustParse(h.CPU), resource.MustParse(h.Memory) // validated before
	id := fmt.Sprintf("%032x", i+1)
	return node.Facts{Hostname: fmt.Sprintf("%s%d", h.Prefix, i), IPs: []string{nth(netip.MustParsePrefix(h.NodeCIDR), i+1).String()},
		CPUs: int(cpus.Value()), MemoryBytes: memory.Value(), DiskBytes: 100 << 30,
		MachineID: id, SystemUUID: id, BootID: id, Kernel: c.machine.Kernel, OSImage: "hollow"}
}

// nth is the n-th address after an IPv4 prefix's own.
func nth(p netip.Prefix, n int) netip.Addr {
	b := p.Masked().Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
	return netip.AddrFrom4(b)
}

// ownConnection makes client-go share no connection between nodes, and lets
// the node act in its own name.
func (a *agent) ownConnection(rc *rest.Config) {
	rc.Dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	if a.cfg.Hollow.Impersonate {
		rc.Impersonate = rest.ImpersonationConfig{UserName: "system:node:" + a.cfg.NodeName, Groups: []string{"system:nodes", "system:authenticated"}}
	}
}

// buildGossip makes node a a member under this machine's address, at any port.
func (c *crew) buildGossip(a *agent) func(context.Context) error {
	return func(ctx context.Context) error {
		cfg := gossip.Config{
			Name:          a.cfg.NodeName,
			BindPort:      -1,
			AdvertiseAddr: c.machine.IPs[0],
			Join:          a.cfg.Join,
			Meta:          gossip.Meta{Role: gossip.RoleAgent},
			Log:           a.log,
		}
		var err error
		if a.cfg.GossipKeyFile != "" {
			if cfg.Keys, err = gossip.LoadKeyring(a.cfg.GossipKeyFile); err != nil {
				return err
			}
		}
		if !a.cfg.GossipInsecure {
			if cfg.Identity, cfg.Trust, err = c.identity(ctx, a); err != nil {
				return fmt.Errorf("certificate for the gossip: %w", err)
			}
		}
		a.gossip, err = gossip.New(cfg)
		return err
	}
}

// watchServices is buildServices without a file to keep them in.
func (a *agent) watchServices(context.Context) error {
	a.services = service.NewSource(service.Config{Client: a.client, Node: a.cfg.NodeName, Log: a.log})
	return nil
}

// hollowTasks are those of tasks() that need no kernel.
func (a *agent) hollowTasks(i int) []task {
	list := []task{{"pods", a.pods.Run}, {"pods of this node", a.api.Run}, {"node", a.node.Run}, {"volumes", a.volumes.Run},
		{"pod network", func(ctx context.Context) error { return a.ownNetwork(ctx, i) }}}
	if a.gossip != nil {
		list = append(list, task{"gossip", a.gossip.Run})
	}
	if a.services != nil {
		list = append(list, task{"services", a.services.Run})
	}
	if a.gossip != nil && a.services != nil {
		list = append(list, task{"backends", a.avoidDead})
	}
	return list
}

// ownNetwork gives the node a pod network when nobody else does.
func (a *agent) ownNetwork(ctx context.Context, i int) error {
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(networkWait):
	}
	rt, ok := a.runtime.(*hollow.Runtime)
	if !ok || rt.HasNetwork() {
		return nil
	}
	if err := a.setPodCIDRs([]netip.Prefix{netip.PrefixFrom(nth(hollowPods, i<<8), 24)}); err != nil {
		return err
	}
	a.node.Poke()
	return nil
}

// lifetime tells when a container ends by itself: init containers must.
func (a *agent) lifetime(uid, container string) time.Duration {
	v, ok := a.pods.View(types.UID(uid))
	if !ok {
		return 0
	}
	for i := range v.Pod.Spec.InitContainers {
		c := &v.Pod.Spec.InitContainers[i]
		if c.Name == container {
			if c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
				return 0
			}
			return initTime
		}
	}
	d, err := time.ParseDuration(v.Pod.Annotations[runForAnnotation])
	if err != nil {
		return 0
	}
	return d
}
