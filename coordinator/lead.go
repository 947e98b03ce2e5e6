package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/coordinator/controller/nodeipam"
	"github.com/shoal-project/shoal/coordinator/controller/systemobjects"
	"github.com/shoal-project/shoal/coordinator/scheduler"
)

// lead runs what only one coordinator does: the scheduler and the controllers, which
// begin again with new keys.
func (s parts) lead(ctx, process context.Context) error {
	for {
		same, end := context.WithCancel(ctx)
		var watching sync.WaitGroup
		watching.Go(func() {
			select {
			case <-s.changed:
				end()
			case <-same.Done():
			}
		})
		err := s.leadOnce(same, process)
		again := err == nil && same.Err() != nil && ctx.Err() == nil
		end()
		watching.Wait()
		if !again {
			return err
		}
	}
}

// leadOnce runs them until ctx ends. Their informers live as long as process, for the
// next term.
func (s parts) leadOnce(ctx, process context.Context) error {
	list, err := s.leaders(process)
	if err != nil {
		return err
	}
	s.api.Informers().Start(process.Done())
	g, leading := errgroup.WithContext(ctx)
	for _, r := range list {
		g.Go(func() error {
			if err := r.Run(leading); err != nil && leading.Err() == nil {
				return fmt.Errorf("%s: %w", r.Name(), err)
			}
			return nil
		})
	}
	return g.Wait()
}

// podRanges are the cluster's for pods, with the size of each node's part.
func podRanges(cfg config.Config, cluster []netip.Prefix) (out []nodeipam.Range) {
	for _, p := range cluster {
		bits := cfg.NodeCIDRMaskSizeIPv4
		if p.Addr().Is6() {
			bits = cfg.NodeCIDRMaskSizeIPv6
		}
		out = append(out, nodeipam.Range{Prefix: p, NodeBits: bits})
	}
	return out
}

// rangesOf are the ranges that nodes are told: of a cluster that has several.
func rangesOf(cfg config.Config) gossip.Ranges {
	if !strings.Contains(cfg.ClusterCIDR+cfg.ServiceCIDR, ",") {
		return gossip.Ranges{}
	}
	return gossip.Ranges{
		Pods:     strings.ReplaceAll(cfg.ClusterCIDR, " ", ""),
		Services: strings.ReplaceAll(cfg.ServiceCIDR, " ", ""),
		DNS:      strings.Join(cfg.DNSAddresses(), ","),
	}
}

func (s parts) leaders(process context.Context) ([]runner, error) {
	clusterCIDRs, err := s.cfg.PodRanges()
	if err != nil {
		return nil, fmt.Errorf("clusterCIDR: %w", err)
	}
	metadata, err := s.api.Metadata()
	if err != nil {
		return nil, fmt.Errorf("make metadata client: %w", err)
	}
	ca, err := keys(s.cfg).CA()
	if err != nil {
		return nil, err
	}
	trusted, err := s.trusted()
	if err != nil {
		return nil, err
	}
	reserved, err := s.apiNames()
	if err != nil {
		return nil, err
	}
	system, err := s.systemObjects()
	if err != nil {
		return nil, err
	}
	list, err := controllers(controllerDeps{
		Client: s.api.Client(), Informers: s.api.Informers(), Metadata: metadata,
		PodRanges:      podRanges(s.cfg, clusterCIDRs),
		Told:           rangesOf(s.cfg),
		VirtualAddress: virtualAddress(s.cfg),
		SystemObjects:  system,
		ServiceCIDRs:   serviceCIDRs(s.cfg), ClusterDNS: s.cfg.DNSAddresses(), RootCA: ca.PEM, Signer: ca,
		Lifetime: time.Duration(s.cfg.ClusterSigningDuration),
		Reserved: reserved.Owner, KeepMounted: s.cfg.DisableForceDetachOnTimeout, Recyclers: s.recyclers,
		EndpointsPerSlice: s.cfg.MaxEndpointsPerSlice, FinishedPods: s.cfg.TerminatedPodGCThreshold,
		Token:   s.auth.Issuer.IssueLegacy,
		Dropped: s.auth.Issuer.Dropped,
		Grants:  s.grants(ca, trusted, clusterCIDRs),
		Config:  s.api.Loopback(),
		Members: s.gossip, Ask: s.gossip.Ask, Log: s.log,
		StartInformers: func() { s.api.Informers().Start(process.Done()) },
	})
	if err != nil {
		return nil, err
	}
	sched, err := scheduler.New(scheduler.Config{
		Client: s.api.Client(), Informers: s.api.Informers(), ConfigFile: s.cfg.SchedulerConfig, Log: s.log,
	})
	if err != nil {
		return nil, err
	}
	return append(list, named{name: "scheduler", run: sched.Run}, named{name: "gateways", run: s.gateways.Lead}), nil
}

// systemObjects make what this API server has of its own, when it is deleted.
func (s parts) systemObjects() (out systemobjects.Deps, err error) {
	system, err := s.system(keys(s.cfg))
	if err != nil {
		return out, err
	}
	of := func(f func(context.Context, kubernetes.Interface) error) func(context.Context) error {
		return func(ctx context.Context) error { return f(ctx, s.api.Client()) }
	}
	out = systemobjects.Deps{
		Service:        of(system.PublishService),
		Endpoints:      s.endpoints.Publish,
		Authentication: of(system.PublishAuthentication),
		TokenTracking:  of(system.TrackTokens),
		DriverName:     system.LocalDriver(),
	}
	if out.DriverName != "" {
		out.Driver = of(system.PublishLocalDriver)
	}
	return out, nil
}

// named makes a runner of a function.
type named struct {
	name string
	run  func(context.Context) error
}

func (n named) Name() string                  { return n.name }
func (n named) Run(ctx context.Context) error { return n.run(ctx) }
