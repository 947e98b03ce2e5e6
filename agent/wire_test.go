package main

import (
	"fmt"
	"log/slog"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/shoal-project/shoal/agent/api"
	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/host"
)

// TestCertificateOfTheKubeletsAPI: the cluster is asked to sign one where it is shown.
func TestCertificateOfTheKubeletsAPI(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	cluster, err := api.Connect(api.Config{Rest: &rest.Config{Host: "https://192.0.2.1"}, NodeName: "n", Log: log})
	if err != nil {
		t.Fatal(err)
	}
	none, err := api.Connect(api.Config{NodeName: "n", Log: log})
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		server       *api.Server
		port         int
		shown, asked bool
	}{
		"in a cluster":                {cluster, 10250, true, true},
		"without an API":              {none, 10250, true, false},
		"without the kubelet's API":   {cluster, 0, false, false},
		"without any API, on no port": {none, 0, false, false},
	} {
		cfg := config.Default()
		cfg.NodeName, cfg.Port, cfg.DataDir = "n", tt.port, t.TempDir()
		c, err := chooseCertificate(&cfg, host.Facts{IPs: []string{"192.0.2.2"}}, tt.server, log)
		if err != nil || (c.show != nil) != tt.shown || (c.manager != nil) != tt.asked {
			t.Errorf("%s: shown %t, signed by the cluster %t, %v", name, c.show != nil, c.manager != nil, err)
		}
	}
}

// TestPrimaryNodePorts: the word primary is the node's first address of each family.
func TestPrimaryNodePorts(t *testing.T) {
	for _, c := range []struct {
		list []string
		own  []string
		want string
	}{
		{nil, []string{"192.0.2.1"}, "[]"},
		{[]string{"10.0.0.0/8", "192.0.2.0/24"}, []string{"192.0.2.1"}, "[10.0.0.0/8 192.0.2.0/24]"},
		{[]string{"primary"}, []string{"192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2"},
			"[192.0.2.1/32 2001:db8::1/128]"},
		{[]string{"primary"}, []string{"127.0.0.1"}, "[]"},
	} {
		cfg := &config.Config{NodePortAddresses: c.list}
		if got := fmt.Sprint(nodePorts(cfg, addrs(c.own))); got != c.want {
			t.Errorf("%v of %v: got %s, want %s", c.list, c.own, got, c.want)
		}
	}
}
