package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/coordinator/pki"
)

// TestGrantsFollowEachOther: a coordinator that starts again with the clock set back is given
// a grant that others take in the place of the one before.
func TestGrantsFollowEachOther(t *testing.T) {
	s := parts{cfg: config.Config{DataDir: t.TempDir()}}
	if err := os.MkdirAll(s.cfg.StateDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	if err := keys(s.cfg).Ensure(pki.Cluster{Domain: "cluster.local"}, now); err != nil {
		t.Fatal(err)
	}
	ca, err := keys(s.cfg).CA()
	if err != nil {
		t.Fatal(err)
	}
	var last time.Time
	for _, ahead := range []time.Duration{0, time.Second, 24 * time.Hour, 0, time.Second, 48 * time.Hour, -time.Hour} {
		id, err := gossip.NewIdentity()
		if err != nil {
			t.Fatal(err)
		}
		raw, err := s.grantOf("coordinator:a", id, ca, now.Add(ahead))
		if err != nil {
			t.Fatal(err)
		}
		g, err := gossip.OpenGrant("coordinator:a", raw, gossip.Trust{ca.Cert}, now)
		if err != nil || !g.Issued.After(last) {
			t.Errorf("with the clock %v ahead it is of %v, the one before of %v; %v", ahead, g.Issued, last, err)
		}
		last = g.Issued
	}
	id, err := gossip.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	full := parts{cfg: config.Config{DataDir: filepath.Join(t.TempDir(), "none")}, log: slog.New(slog.DiscardHandler)}
	if _, err := full.grantOf("coordinator:a", id, ca, now); err != nil {
		t.Errorf("where nothing can be written: %v", err)
	}
}

// TestGossipAddresses: a Node is called at its address among the cluster's machines, if its
// agent takes part in the gossip.
func TestGossipAddresses(t *testing.T) {
	node := func(certificate string, addresses ...corev1.NodeAddress) *corev1.Node {
		n := &corev1.Node{Status: corev1.NodeStatus{Addresses: addresses}}
		n.Annotations = map[string]string{gossip.CertificateAnnotation: certificate}
		return n
	}
	name := corev1.NodeAddress{Type: corev1.NodeHostName, Address: "n"}
	external := corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "198.51.100.1"}
	at := func(ip string) corev1.NodeAddress {
		return corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip}
	}
	for _, c := range []struct {
		node *corev1.Node
		want string
	}{
		{node("certificate", name, external, at("192.0.2.1"), at("2001:db8::1")), "192.0.2.1:7946"},
		{node("certificate", at("2001:db8::1")), "[2001:db8::1]:7946"},
		{node("certificate", at("127.0.0.1")), ""},
		{node("certificate", name), ""},
		{node("certificate", at("none")), ""},
		{node("", at("192.0.2.1")), ""},
	} {
		got, ok := gossipAddress(c.node)
		if ok != (c.want != "") || ok && got.String() != c.want {
			t.Errorf("%v: %v %v, want %q", c.node.Status.Addresses, got, ok, c.want)
		}
	}
}
