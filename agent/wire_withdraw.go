package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/agent/pod"
	"github.com/shoal-project/shoal/agent/service"
	"github.com/shoal-project/shoal/agent/withdraw"
)

// newWithdrawals knows who still leads traffic to pods of this node; nil where the proxy is
// another's.
func newWithdrawals(cfg *config.Config, group *gossip.Group, log *slog.Logger) *withdraw.Manager {
	if !cfg.Proxy() {
		return nil
	}
	c := withdraw.Config{Log: log}
	if group != nil && group.Verified() {
		c.Ask = group.Ask
		c.Members = func() []string { return proxies(group.Members()) }
	}
	return withdraw.New(c)
}

// proxies are the other nodes that live, and say where their proxies lead traffic.
func proxies(members []gossip.Member) (out []string) {
	for _, m := range members {
		if m.Role == gossip.RoleAgent && m.Proxies && !m.Local && m.State.Up() {
			out = append(out, m.Name)
		}
	}
	return out
}

// withdrawPods has pods that end behind Services wait until nobody sends to them.
func withdrawPods(b base, m *withdraw.Manager, pods *pod.Manager) {
	if m == nil {
		return
	}
	pods.WithdrawTime = func(p *corev1.Pod) time.Duration { return withdraw.Bound(p, b.cfg.EndpointRemovalWait.Duration) }
	pods.Withdraw = func(ctx context.Context, p *corev1.Pod, sandbox string) {
		list := b.services.EndpointsOf(service.Key{Namespace: p.Namespace, Name: p.Name})
		if len(list) == 0 || m.Wait(ctx, list) != nil {
			return
		}
		path, ok := "", true
		if !p.Spec.HostNetwork {
			path, ok = networkNamespace(ctx, b, sandbox)
		}
		if !ok {
			return
		}
		var ports []uint16
		for _, e := range list {
			ports = append(ports, e.Addr.Port())
		}
		if err := withdraw.Quiet(ctx, path, ports); err != nil && ctx.Err() == nil {
			b.log.Warn("a pod ends without a look at what it still has to answer", "pod", p.UID, "err", err)
		}
	}
}

// networkNamespace is where a sandbox's is pinned; false with a runtime that does not say it
// as ours does.
func networkNamespace(ctx context.Context, b base, sandbox string) (string, bool) {
	if b.runtime.builtin == nil {
		return "", false
	}
	resp, err := b.runtime.brief.PodSandboxStatus(ctx, sandbox, true)
	if err != nil {
		return "", false
	}
	var said struct {
		NetNS string `json:"netns"`
	}
	err = json.Unmarshal([]byte(resp.GetInfo()["info"]), &said)
	return said.NetNS, err == nil && said.NetNS != ""
}
