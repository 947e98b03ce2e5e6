package main

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/node"
)

func (a *agent) buildNode(context.Context) error {
	a.node = &node.Manager{Client: a.client, Name: a.cfg.NodeName, Input: a.nodeInput, LeaseSeconds: a.cfg.NodeLeaseDurationSeconds,
		Report: a.cfg.NodeStatusReportFrequency.Duration, Seen: a.nodeSeen, Log: a.log,
		Event: func(kind, reason, message string) { a.events.node(a.cfg.NodeName, kind, reason, message) }}
	return nil
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

// nodeSeen takes the Node's newest version: its pod network most of all.
func (a *agent) nodeSeen(n *v1.Node) {
	old := a.saved.Swap(n)
	kept := &v1.Node{ObjectMeta: n.ObjectMeta, Spec: n.Spec}
	if err := a.nodes.Put(n.Name, kept); err != nil {
		a.log.Warn("the node is not kept for when the API is away", "error", err)
	}
	if zone := n.Labels[v1.LabelTopologyZone]; zone != "" && a.services != nil {
		a.services.SetZone(zone)
	}
	a.tellGossip(n)
	if a.certificates != nil {
		a.certificates.Addresses(n.Status.Addresses)
	}
	cidrs := prefixes(n.Spec.PodCIDRs...)
	if a.cfg.PodCIDR != "" {
		cidrs = prefixes(a.cfg.PodCIDR)
	}
	if len(cidrs) == 0 {
		return
	}
	if err := a.setPodCIDRs(cidrs); err != nil {
		a.log.Warn("the pod network cannot be made", "cidrs", cidrs, "error", err)
	}
	if old == nil || !slices.Equal(old.Spec.PodCIDRs, n.Spec.PodCIDRs) {
		if a.cfg.ContainerRuntimeEndpoint != "" {
			a.tellPodCIDR(context.Background(), cidrs[0].String()) // bounded by the client's timeout
		}
		a.node.Poke() // Ready waited for this
	}
}

// nodeInput gathers what the Node says now.
func (a *agent) nodeInput(ctx context.Context) node.Input {
	in := node.Input{Name: a.cfg.NodeName, Facts: a.facts, Labels: a.cfg.NodeLabels, MaxPods: a.cfg.MaxPods, Port: a.cfg.Port,
		Reserved: a.reserved(), Runtime: a.version, Now: metav1.Now().Rfc3339Copy(), Taints: taints(a.cfg.RegisterWithTaints),
		Pressure: a.measure(), Annotations: a.gossipAnnotations()}
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
	in.Handlers = node.Handlers(st.GetRuntimeHandlers())
	return in
}

func (a *agent) nodeImages(ctx context.Context) []v1.ContainerImage {
	list, err := a.images.ListImages(ctx, nil)
	if err != nil {
		return nil
	}
	return node.Images(list, a.cfg.NodeStatusMaxImages)
}
