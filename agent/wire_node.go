package main

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/evict"
	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/agent/node"
	"github.com/shoal-project/shoal/agent/pod"
	"github.com/shoal-project/shoal/agent/problem"
	"github.com/shoal-project/shoal/agent/service"
	"github.com/shoal-project/shoal/agent/serving"
)

// reserved is what the system and the agent keep for themselves.
func reserved(cfg *config.Config) corev1.ResourceList {
	return node.Reserved(cfg.SystemReserved, cfg.KubeReserved)
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

// listener takes every version of the Node that the API has.
type listener = func(*corev1.Node)

// newNode keeps the Node object and its Lease, and has listeners told of it.
func newNode(b base, pressure func() map[corev1.NodeConditionType]bool, problems func() []corev1.NodeCondition,
	group *gossip.Group, inUse func() []corev1.UniqueVolumeName, listeners []listener) *node.Manager {
	annotations := func() map[string]string { return nil }
	if group != nil {
		annotations = group.Annotations
	}
	describer := &node.Describer{
		Static: node.Input{
			Name:     b.cfg.NodeName,
			Facts:    b.facts,
			Labels:   b.cfg.NodeLabels,
			Taints:   node.Taints(b.cfg.RegisterWithTaints),
			MaxPods:  b.cfg.MaxPods,
			Port:     b.cfg.Port,
			Reserved: withheld(b.cfg, b.facts),
			Runtime:  b.runtime.version,
			Features: pod.DeclaredFeatures(),
		},
		Runtime:     b.runtime,
		Images:      b.runtime.images,
		MaxImages:   b.cfg.NodeStatusMaxImages,
		Pressure:    pressure,
		Problems:    problems,
		Annotations: annotations,
		Leaving:     b.leaving,
		InUse:       inUse,
	}
	m := &node.Manager{
		Client:       b.server.Client,
		Name:         b.cfg.NodeName,
		Input:        describer.Describe,
		LeaseSeconds: b.cfg.NodeLeaseDurationSeconds,
		Report:       b.cfg.NodeStatusReportFrequency.Duration,
		Seen: func(n *corev1.Node) {
			for _, l := range listeners {
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

// newProblems looks for what is wrong with the machine; changed hears of it.
func newProblems(b base, changed func()) *problem.Watcher {
	return &problem.Watcher{
		Machine: problem.ThisOne(),
		Paths:   []string{b.cfg.DataDir, b.cfg.RootDir, b.cfg.PodLogsDir, b.cfg.RunDir},
		Event: func(reason, message string) {
			b.events.Node(corev1.EventTypeWarning, reason, message)
		},
		Changed: changed,
		Log:     b.log,
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
