package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/network"
	"github.com/shoal-project/shoal/agent/pod"
	"github.com/shoal-project/shoal/agent/policy"
	"github.com/shoal-project/shoal/agent/policyfeed"
	podrecord "github.com/shoal-project/shoal/agent/record"
)

// newPolicies enforces NetworkPolicies on the pods of the node's own network; nil where
// it has none: a third party's brings what enforces them, or nothing.
func newPolicies(b base, offline *pod.Offline) *policy.Engine {
	if b.ownNetwork == nil || !b.cfg.Policies() {
		return nil
	}
	c := policy.Config{
		Table:   policyTable(b.cfg),
		Node:    b.cfg.NodeName,
		DNS:     ownDNS(b.cfg),
		File:    filepath.Join(b.cfg.CheckpointDir(), "policies.json"),
		CutOff:  offline.Silent,
		Foreign: b.foreign,
		Log:     b.log,
	}
	if b.server.Configured() {
		client := b.server.Client.Discovery().RESTClient()
		c.Feed = func(ctx context.Context) (io.ReadCloser, error) {
			stream, err := client.Get().AbsPath(policyfeed.Path).Stream(ctx)
			if apierrors.IsNotFound(err) {
				return nil, policy.ErrNoFeed
			}
			return stream, err
		}
	}
	return policy.New(c)
}

func policyTable(cfg *config.Config) string { return cfg.NFTable + "-policy" }

// dropPolicies removes what an agent before enforced where this one enforces nothing: the
// addresses are others' soon.
func dropPolicies(cfg *config.Config, log *slog.Logger) {
	if err := policy.Cleanup(policyTable(cfg)); err != nil {
		log.Warn("network policies of an earlier configuration may be enforced still", "err", err)
	}
}

// byOwnNetwork is base's.
func byOwnNetwork(cfg *config.Config, n *network.Manager) func() bool {
	if cfg.PodNetwork == config.NoNetwork || cfg.ContainerRuntimeEndpoint != "" {
		return nil
	}
	return func() bool { return n.Name() == network.Builtin }
}

// isolate lets containers of a pod start once its policies are enforced.
func isolate(e *policy.Engine, own func() bool) func(context.Context, *corev1.Pod, []string) error {
	return func(ctx context.Context, p *corev1.Pod, ips []string) error {
		if !own() {
			return nil
		}
		seen := policyfeed.PodOf(p, ips)
		if seen == nil {
			return fmt.Errorf("%w: it has no address", policy.ErrNotReady)
		}
		return e.Admit(ctx, p.UID, seen)
	}
}

// forgetPolicies is the step that says that a pod's addresses are not its own any more.
func forgetPolicies(e *policy.Engine) pod.Step {
	forget := func(_ context.Context, s *pod.Setting) error {
		e.Forget(s.Pod.UID, policyfeed.Key{Namespace: s.Pod.Namespace, Name: s.Pod.Name})
		return nil
	}
	// Also before a sandbox is made anew: what the dead one had is given to others.
	return pod.Step{Name: "network policies", Ensure: forget, Release: forget}
}

// adoptPolicies tells of the pods that ran when this agent began.
func adoptPolicies(ctx context.Context, e *policy.Engine, b base, records map[string]*podrecord.Pod) error {
	_, ready := b.runtime.builtin.Connected()
	for _, s := range ready {
		r := records[s.UID]
		if r == nil || r.Pod == nil || s.Network != "" && s.Network != network.Builtin {
			continue
		}
		st, err := b.runtime.brief.PodSandboxStatus(ctx, s.ID, false)
		if err != nil {
			return fmt.Errorf("addresses of %s/%s: %w", s.Namespace, s.Name, err)
		}
		ips := []string{st.GetStatus().GetNetwork().GetIp()}
		for _, a := range st.GetStatus().GetNetwork().GetAdditionalIps() {
			ips = append(ips, a.GetIp())
		}
		if seen := policyfeed.PodOf(r.Pod, ips); seen != nil {
			e.Adopt(r.Pod.UID, seen)
		}
	}
	return nil
}
