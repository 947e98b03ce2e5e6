package netconf

import (
	"strings"
	"testing"

	"github.com/shoal-project/shoal/cni/podnet"
)

func TestParse(t *testing.T) {
	c, err := Parse([]byte(`{"podCIDRs":["10.244.1.0/24"],"serviceCIDRs":["10.96.0.0/16"],"clusterDNS":["10.96.0.10"],"runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":8080,"hostIP":"192.0.2.1"}],"bandwidth":{"ingressRate":1000000,"egressBurst":4294967295}}}`))
	if err != nil || c.ClusterDNS[0].String() != "10.96.0.10" || c.RuntimeConfig.PortMappings[0].HostIP != "192.0.2.1" {
		t.Errorf("got %+v, %v", c, err)
	}
	if b := c.RuntimeConfig.Bandwidth; b != (podnet.Bandwidth{IngressRate: 1_000_000, EgressBurst: 1<<32 - 1}) {
		t.Errorf("got %+v", b)
	}
	if _, err := Parse([]byte(`{}`)); err == nil || !strings.Contains(err.Error(), "podCIDRs") {
		t.Errorf("without a range: got %v", err)
	}
}
