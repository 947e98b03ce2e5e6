package main

import (
	"fmt"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/agent/node"
)

// What a Node tells is added behind what the configuration has, and nothing else is.
func TestAdoptRanges(t *testing.T) {
	const (
		pods, services = "10.244.0.0/16,fd00:1::/56", "10.96.0.0/16,fd00:2::/112"
		had            = "10.244.0.0/16 10.96.0.0/16 [10.96.0.10]"
		both           = pods + " " + services + " [10.96.0.10 fd00:2::a]"
	)
	full := gossip.Ranges{Pods: pods, Services: services, DNS: "10.96.0.10,fd00:2::a"}.Text()
	for _, c := range []struct{ name, told, want string }{
		{"none", "", had},
		{"both", full, both},
		{"services_alone", gossip.Ranges{Pods: "10.244.0.0/16", Services: services, DNS: "10.96.0.10"}.Text(),
			"10.244.0.0/16 " + services + " [10.96.0.10]"},
		{"another_first", gossip.Ranges{Pods: "10.245.0.0/16,fd00:1::/56", Services: "10.97.0.0/16,fd00:2::/112"}.Text(),
			had},
		{"one_family", gossip.Ranges{Pods: "10.244.0.0/16,10.245.0.0/16", Services: "10.96.0.0/16"}.Text(),
			"10.244.0.0/16,10.245.0.0/16 10.96.0.0/16 [10.96.0.10]"},
		{"many_of_Services", gossip.Ranges{Pods: pods, Services: services + ",fd00:3::/112"}.Text(), had},
		{"overlap", gossip.Ranges{Pods: "10.244.0.0/16,10.244.1.0/24", Services: services}.Text(), had},
		{"no_ranges", `{"pods": "10.244.0.0/16,x", "services": ","}`, had},
		{"no_JSON", "x", had},
		{"long", full[:len(full)-1] + fmt.Sprintf(`, "more": %01000d}`, 0), had},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := config.Default()
			cfg.NodeName = "n"
			n := &corev1.Node{}
			n.Annotations = map[string]string{gossip.RangesAnnotation: c.told}
			added := adoptRanges(&cfg, n, slog.New(slog.DiscardHandler))
			got := fmt.Sprint(cfg.ClusterCIDR, " ", cfg.ServiceCIDR, " ", cfg.ClusterDNS)
			if got != c.want || added != (got != had) {
				t.Errorf("got %s, %v; want %s", got, added, c.want)
			}
			if adoptRanges(&cfg, n, slog.New(slog.DiscardHandler)) {
				t.Error("the same again adds something")
			}
		})
	}
}

// keptNode is what an earlier agent kept of its Node, nil for nothing.
type keptNode struct{ node *corev1.Node }

func (k keptNode) Get(string) (*corev1.Node, error) { return k.node, nil }
func (k keptNode) Put(string, *corev1.Node) error   { return nil }

// Without an API server nobody gives the node a range, so that it takes one itself.
func TestPodCIDRs(t *testing.T) {
	known := &corev1.Node{Spec: corev1.NodeSpec{PodCIDRs: []string{"10.244.7.0/24"}}}
	for _, c := range []struct {
		name, cluster, own, kubeconfig string
		kept                           *corev1.Node
		want                           string
	}{
		{name: "alone", cluster: "10.244.0.0/16", want: "10.244.0.0/24"},
		{name: "two_families", cluster: "fd00:1::/56,10.244.0.0/16", want: "fd00:1::/64,10.244.0.0/24"},
		{name: "ranges_added", cluster: "10.244.0.0/16,10.245.0.0/16", want: "10.244.0.0/24"},
		{name: "a_small_cluster", cluster: "10.244.0.0/28", want: "10.244.0.0/28"},
		{name: "configured", cluster: "10.244.0.0/16", own: "10.244.9.0/24", want: "10.244.9.0/24"},
		{name: "of_a_cluster", cluster: "10.244.0.0/16", kubeconfig: "/k"},
		{name: "formerly_of_a_cluster", cluster: "10.244.0.0/16", kept: known},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := config.Default()
			cfg.ClusterCIDR, cfg.PodCIDR, cfg.Kubeconfig = c.cluster, c.own, c.kubeconfig
			memory := node.Remember(keptNode{c.kept}, "n", slog.Default())
			if got := podCIDRs(&cfg, memory).Text(); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
