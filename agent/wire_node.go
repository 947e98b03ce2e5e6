package main

import (
	"context"
	"maps"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"

	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/evict"
	"github.com/shoal-project/shoal/agent/gatewayfeed"
	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/agent/network"
	"github.com/shoal-project/shoal/agent/node"
	"github.com/shoal-project/shoal/agent/pod"
	"github.com/shoal-project/shoal/agent/problem"
	"github.com/shoal-project/shoal/agent/service"
	"github.com/shoal-project/shoal/agent/serving"
)

// reserved is what the system and the agent keep for themselves.
func reserved(cfg *config.Config) corev1.ResourceList {
	out := node.Reserved(cfg.SystemReserved, cfg.KubeReserved)
	if cpus, err := cpuset.Parse(cfg.ReservedSystemCPUs); err == nil && !cpus.IsEmpty() {
		out[corev1.ResourceCPU] = *resource.NewQuantity(int64(cpus.Size()), resource.DecimalSI)
	}
	return out
}

// withheld is what pods may not ask for: what is reserved, and what is to be left
// free for the node not to be under pressure.
func withheld(cfg *config.Config, facts host.Facts) corev1.ResourceList {
	out := reserved(cfg)
	for name, kept := range map[corev1.ResourceName]uint64{
		corev1.ResourceMemory:           evict.Keep(cfg.EvictionHard, "memory.available")(uint64(facts.MemoryBytes)),
		corev1.ResourceEphemeralStorage: evict.Keep(cfg.EvictionHard, "nodefs.available")(uint64(facts.DiskBytes)),
	} {
		sum := out[name]
		sum.Add(*resource.NewQuantity(int64(kept), resource.BinarySI))
		out[name] = sum
	}
	return out
}

// nodeCapacity is what the Node shows.
func nodeCapacity(cfg *config.Config, facts host.Facts) (capacity, allocatable corev1.ResourceList) {
	return node.Capacity(facts, cfg.MaxPods, withheld(cfg, facts))
}

// memoryOfPods is the Node's allocatable memory, in bytes.
func memoryOfPods(cfg *config.Config, facts host.Facts) int64 {
	_, allocatable := nodeCapacity(cfg, facts)
	return allocatable.Memory().Value()
}

// listener takes every version of the Node that the API has.
type listener = func(*corev1.Node)

// nodeParts are what the Node tells of, and whom it is told to.
type nodeParts struct {
	pressure  func() map[corev1.NodeConditionType]bool
	problems  func() []corev1.NodeCondition // nil on a hollow node
	group     *gossip.Group                 // nil without gossip
	pods      func() []*corev1.Pod
	inUse     func() []corev1.UniqueVolumeName // nil on a hollow node
	listeners []listener
	gateways  bool // it answers for Gateways and Ingresses
}

// newNode keeps the Node object and its Lease, and has listeners told of it.
func newNode(b base, p nodeParts) *node.Manager {
	annotations := func() map[string]string { return nil }
	if p.group != nil {
		annotations = p.group.Annotations
	}
	said := annotations
	annotations = func() map[string]string {
		out := map[string]string{gatewayfeed.ProxyAnnotation: strconv.FormatBool(p.gateways)}
		maps.Copy(out, said())
		return out
	}
	describer := &node.Describer{
		Static: node.Input{
			Name:        b.cfg.NodeName,
			Facts:       b.facts,
			ExternalIPs: b.cfg.NodeExternalIPs,
			Labels:      b.cfg.NodeLabels,
			Taints:      node.Taints(b.cfg.RegisterWithTaints),
			MaxPods:     b.cfg.MaxPods,
			Port:        b.cfg.Port,
			Reserved:    withheld(b.cfg, b.facts),
			Runtime:     b.runtime.version,
			Features:    pod.DeclaredFeatures(),
		},
		Runtime:     b.runtime,
		Images:      b.runtime.images,
		MaxImages:   b.cfg.NodeStatusMaxImages,
		Pressure:    p.pressure,
		Problems:    p.problems,
		Annotations: annotations,
		Leaving:     b.leaving,
		OwnNetwork:  b.ownNetwork,
		InUse:       p.inUse,
		Devices:     counted(b.exact),
	}
	m := &node.Manager{
		Client:       b.server.Client,
		Name:         b.cfg.NodeName,
		MadeByOthers: !b.cfg.Registers(),
		Input:        digested(describer.Describe, p),
		Anew:         b.exact != nil && b.memory.Node() == nil,
		LeaseSeconds: b.cfg.NodeLeaseDurationSeconds,
		Report:       b.cfg.NodeStatusReportFrequency.Duration,
		Seen: func(n *corev1.Node) {
			for _, l := range p.listeners {
				l(n)
			}
		},
		Event: b.events.Node,
		Log:   b.log,
	}
	if b.guard != nil {
		m.Fence = b.guard
	}
	return m
}

// digested has the neighbours know what the Node says now.
func digested(describe func(context.Context) node.Input, p nodeParts) func(context.Context) node.Input {
	if p.group == nil {
		return describe
	}
	return func(ctx context.Context) node.Input {
		in := describe(ctx)
		p.group.SetDigest(digest(in, len(p.pods())))
		return in
	}
}

func digest(in node.Input, pods int) gossip.Digest {
	d := gossip.Digest{Version: node.Version, Pods: pods}
	for condition, pressure := range map[corev1.NodeConditionType]gossip.Pressure{
		corev1.NodeMemoryPressure: gossip.MemoryPressure,
		corev1.NodeDiskPressure:   gossip.DiskPressure,
		corev1.NodePIDPressure:    gossip.PIDPressure,
	} {
		if in.Pressure[condition] {
			d.Pressure = append(d.Pressure, pressure)
		}
	}
	return d
}

// newProblems looks for what is wrong with the machine; changed hears of it, set of a clock
// that was set.
func newProblems(b base, changed func(), set func(step time.Duration)) *problem.Watcher {
	return &problem.Watcher{
		Machine: problem.ThisOne(),
		Paths:   []string{b.cfg.DataDir, b.cfg.RootDir, b.cfg.PodLogsDir, b.cfg.RunDir},
		Event: func(reason, message string) {
			b.events.Node(corev1.EventTypeWarning, reason, message)
		},
		Changed: changed,
		Set:     set,
		Log:     b.log,
	}
}

// handshakeStep is the step back of the clock from which tunnels get another key: those of
// less are over before a handshake is given up (REKEY_TIMEOUT of WireGuard is 5 s).
const handshakeStep = -10 * time.Second

// clockSet has what counts by the time of day looked at.
func clockSet(p *podParts, n *network.Manager, certificate *serving.Manager) func(step time.Duration) {
	return func(step time.Duration) {
		p.volumes.ClockSet()
		if certificate != nil {
			certificate.Look()
		}
		if step < handshakeStep {
			n.ClockSetBack()
		}
	}
}

func zone(s *service.Source) listener {
	return func(n *corev1.Node) {
		if z := n.Labels[corev1.LabelTopologyZone]; z != "" {
			s.SetZone(z)
		}
	}
}

func membership(g *gossip.Group) listener {
	return func(n *corev1.Node) { g.Heed(n.Annotations, n.Labels[corev1.LabelTopologyZone]) }
}

func addresses(m *serving.Manager) listener {
	return func(n *corev1.Node) { m.Addresses(n.Status.Addresses) }
}
