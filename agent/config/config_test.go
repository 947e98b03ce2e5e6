package config

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(file, []byte("nodeName: Big\nmaxPods: 7\nport: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Parse([]string{"--config", file, "--port", "2"})
	if err != nil {
		t.Fatal(err)
	}
	if c.NodeName != "big" || c.MaxPods != 7 || c.Port != 2 || c.RootDir != "/var/lib/kubelet" {
		t.Errorf("%+v", c)
	}
	if err := c.Validate(); err != nil {
		t.Errorf("defaults are not valid: %v", err)
	}
	if err := os.WriteFile(file, []byte("nodeNam: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Parse([]string{"--config", file}); err == nil || !strings.Contains(err.Error(), "nodeNam") {
		t.Errorf("unknown field: %v", err)
	}
}

func TestValidateTellsAll(t *testing.T) {
	c := Default()
	c.NodeName, c.NodeIP, c.Port, c.ClusterCIDR, c.RunDir, c.PodNetwork = "a_b", "x", 70000, "y", "rel", "None"
	c.ProxyHealthzBindAddress, c.ProxyMetricsBindAddress = "10256", "localhost:10249"
	c.Conntrack.TCPCloseWaitTimeout.Duration, c.ImageServiceEndpoint = -1, "/run/images.sock"
	c.EnableSystemLogQuery, c.EnableSystemLogHandler = true, new(bool)
	c.Conntrack.MaxPerCore, c.Conntrack.Min, c.Conntrack.UDPTimeout.Duration = -1, -1, -1
	c.Tracing = &Tracing{Endpoint: "http://collector:4317", SamplingRatePerMillion: 1_000_001}
	c.UpstreamNameservers, c.DNSSearchCompletion, c.DNSHostsFile = []string{"10.96.0.10"}, "Some", "hosts"
	c.StubDomains = map[string][]string{"x.cluster.local": {"192.0.2.1"}}
	c.ReverseConnection = "sometimes"
	c.HostFirewall = "off"
	err := c.Validate()
	for _, field := range []string{"reverseConnection", "hostFirewall",
		"upstreamNameservers", "dnsSearchCompletion", "dnsHostsFile", "stubDomains",
		"nodeName", "nodeIP", "port", "clusterCIDR", "runDir", "podNetwork",
		"proxyHealthzBindAddress", "proxyMetricsBindAddress", "conntrack.tcpCloseWaitTimeout", "imageServiceEndpoint",
		"enableSystemLogQuery", "conntrack.maxPerCore", "conntrack.min", "conntrack.udpTimeout",
		"tracing.endpoint", "tracing.samplingRatePerMillion"} {
		if err == nil || !strings.Contains(err.Error(), field+":") {
			t.Errorf("%s is not told: %v", field, err)
		}
	}
}

// TestConntrackMax: kube-proxy's defaults and bounds.
func TestConntrackMax(t *testing.T) {
	for processors, want := range map[int]int{1: 131072, 4: 131072, 8: 262144, 128: 1 << 20} {
		if got := Default().Conntrack.Max(processors); got != want {
			t.Errorf("%d processors: %d flows, want %d", processors, got, want)
		}
	}
	if got := (Conntrack{Min: 1 << 21}).Max(8); got != 0 {
		t.Errorf("maxPerCore 0: %d flows", got)
	}
	if got := (Conntrack{MaxPerCore: 1, Min: 1 << 21}).Max(8); got != 1<<21 {
		t.Errorf("a high minimum: %d flows", got)
	}
}

// TestNodePortAddresses: kube-proxy's --nodeport-addresses (SVC-39).
func TestNodePortAddresses(t *testing.T) {
	for _, c := range []struct {
		list string
		want string // in the error
	}{
		{list: ""},
		{list: "primary"},
		{list: "10.0.0.0/8,192.0.2.9/25,2001:db8::/32"},
		{list: "0.0.0.0/0"},
		{list: "192.0.2.1", want: "192.0.2.1"},
		{list: "eth0", want: "eth0"},
		{list: "::ffff:192.0.2.0/120", want: "::ffff:"},
		{list: "primary,10.0.0.0/8", want: "alone"},
		{list: "10.0.0.0/8,primary", want: "alone"},
	} {
		got, err := Parse([]string{"--nodeport-addresses", c.list, "--node-name", "n"})
		if err != nil {
			t.Fatal(err)
		}
		err = got.Validate()
		if c.want == "" {
			if err != nil {
				t.Errorf("%q: %v", c.list, err)
			} else if list := strings.Join(got.NodePortAddresses, ","); list != c.list {
				t.Errorf("%q became %q", c.list, list)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), "nodePortAddresses:") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got %v", c.list, err)
		}
	}
}

// NODE-10, NODE-20: which addresses a node can have, and the kubelet's flag of its name.
func TestNodeAddresses(t *testing.T) {
	for _, c := range []struct {
		ip       string
		external []string
		want     string
	}{
		{ip: "192.0.2.1", external: []string{"198.51.100.1", "2001:db8::1"}},
		{ip: "0.0.0.0"},
		{ip: "::", want: "nodeIP:"},
		{ip: "224.0.0.1", want: "nodeIP:"},
		{external: []string{"node.example"}, want: "nodeExternalIPs:"},
		{external: []string{"127.0.0.1"}, want: "nodeExternalIPs:"},
		{external: []string{"169.254.0.1"}, want: "nodeExternalIPs:"},
		{external: []string{"fe80::1%eth0"}, want: "nodeExternalIPs:"},
		{external: []string{"198.51.100.1", "198.51.100.1"}, want: "nodeExternalIPs:"},
	} {
		cfg := Default()
		cfg.NodeName, cfg.NodeIP, cfg.NodeExternalIPs = "n", c.ip, c.external
		err := cfg.Validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	c, err := Parse([]string{"--hostname-override", "Rack1", "--node-external-ip", "198.51.100.1,198.51.100.2"})
	if err != nil || c.NodeName != "rack1" || len(c.NodeExternalIPs) != 2 {
		t.Errorf("%s, %q, %v", c.NodeName, c.NodeExternalIPs, err)
	}
}

// F PID-1, PID-2, SEC: the kubelet's fields, with defaults that are on.
func TestProcessLimits(t *testing.T) {
	c := Default()
	c.NodeName = "n"
	if !c.Seccomp() || *c.PodPidsLimit != 4096 {
		t.Errorf("seccompDefault %v, podPidsLimit %d", c.Seccomp(), *c.PodPidsLimit)
	}
	c.SystemReserved = map[string]string{"pid": "1000", "cpu": "100m"}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	none, uneven := int64(0), int64(100000)
	c.PodPidsLimit, c.UserNamespaces.IDsPerPod = &none, &uneven
	c.SystemReserved = map[string]string{"pids": "1"}
	c.KubeReserved = map[string]string{"pid": "-1"}
	err := c.Validate()
	for _, want := range []string{
		"podPidsLimit: 0", "userNamespaces.idsPerPod: 100000",
		`systemReserved: "pids" cannot be reserved`, `kubeReserved: pid: "-1" must not be negative`,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
	}
}

// Thresholds of a file stand for all defaults, unless it keeps those (NPE-15).
func TestEvictionSettings(t *testing.T) {
	for text, want := range map[string]map[string]string{
		"{}":                               Default().EvictionHard,
		"evictionHard: {pid.available: 5}": {"pid.available": "5"},
		"evictionHard: {}":                 {},
		"{mergeDefaultEvictionSettings: true, evictionHard: {memory.available: 5%, nodefs.inodesFree: '0'}}": {
			"memory.available": "5%", "nodefs.available": "10%", "nodefs.inodesFree": "0", "imagefs.available": "15%",
			"imagefs.inodesFree": "5%"},
	} {
		file := filepath.Join(t.TempDir(), "agent.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Parse([]string{"--config", file})
		if err != nil || !maps.Equal(c.EvictionHard, want) {
			t.Errorf("%s: %v, %v", text, c.EvictionHard, err)
		}
	}
	c := Default()
	c.NodeName = "n"
	c.EvictionMaxPodGracePeriod, c.ImageGCLowThresholdPercent, c.ImageMaximumGCAge.Duration = -1, 85, time.Minute
	c.EvictionPressureTransitionPeriod.Duration, c.MinimumContainerTTLDuration.Duration = -1, -1
	c.EvictionMemoryStall, c.EvictionMemoryStallPeriod.Duration = "0.6", time.Second
	err := c.Validate()
	for _, field := range []string{"evictionMaxPodGracePeriod", "imageGCLowThresholdPercent", "imageMaximumGCAge",
		"evictionPressureTransitionPeriod", "minimumContainerTTLDuration", "evictionMemoryStall", "evictionMemoryStallPeriod"} {
		if err == nil || !strings.Contains(err.Error(), field+":") {
			t.Errorf("%s is not told: %v", field, err)
		}
	}
}

// Eviction by stall time is on, can be switched off in each way that thresholds can, and
// what is no percentage is refused with what to write.
func TestMemoryStall(t *testing.T) {
	c := Default()
	share, err := c.MemoryStallShare()
	if period := c.EvictionMemoryStallPeriod.Duration; err != nil || share != 0.6 || period != 30*time.Second {
		t.Errorf("%v of %v by default, %v", share, period, err)
	}
	file := filepath.Join(t.TempDir(), "agent.yaml")
	for text, want := range map[string]float64{
		"{}": 0.6, "evictionMemoryStall: ''": 0, "evictionMemoryStall: 0%": 0, "evictionMemoryStall: 100%": 0,
		"evictionMemoryStall: 62.5%": 0.625, "evictionMemoryStall: 60": -1, "evictionMemoryStall: 0.6": -1,
		"evictionMemoryStall: NaN%": -1, "evictionMemoryStall: 101%": -1, "evictionMemoryStall: -1%": -1,
		"evictionMemoryStall: '%'": -1, "evictionMemoryStallPeriod: 0s": -1, "evictionMemoryStallPeriod: 9s": -1,
		"evictionMemoryStallPeriod: 11m": -1, "evictionMemoryStallPeriod: 10s": 0.6,
	} {
		if err := os.WriteFile(file, []byte(text+"\nnodeName: n\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Parse([]string{"--config", file})
		if err == nil {
			err = c.Validate()
		}
		if want < 0 {
			if err == nil {
				t.Errorf("%s is taken", text)
			}
			continue
		}
		if share, _ := c.MemoryStallShare(); err != nil || share != want {
			t.Errorf("%s: %v, %v", text, share, err)
		}
	}
	c.NodeName, c.EvictionMemoryStall = "n", "60"
	const fault = `evictionMemoryStall: "60" is not a percentage, such as 60%; empty: no pod is evicted for it`
	if err := c.Validate(); err == nil || err.Error() != fault {
		t.Error(err)
	}
}

// TestParallelImagePulls: ten at one time, or what the file says; one after the other on
// demand, which does not go with another number.
func TestParallelImagePulls(t *testing.T) {
	for _, tc := range []struct {
		serialize  bool
		most, want int
		refused    bool
	}{
		{want: 10}, {most: 3, want: 3}, {serialize: true, want: 1}, {serialize: true, most: 1, want: 1},
		{serialize: true, most: 2, refused: true}, {most: -1, refused: true},
	} {
		c := Default()
		c.SerializeImagePulls, c.MaxParallelImagePulls = tc.serialize, tc.most
		var told []string
		c.validateImages(func(field, _ string, _ ...any) { told = append(told, field) })
		if refused := len(told) > 0; refused != tc.refused {
			t.Errorf("%+v: refused: %v", tc, told)
		}
		if got := c.ParallelImagePulls(); !tc.refused && got != tc.want {
			t.Errorf("%+v: %d at one time", tc, got)
		}
	}
}

func TestStubDomains(t *testing.T) {
	for _, x := range []struct{ text, want string }{
		{"stubDomains: {acme.local: [192.0.2.1, '192.0.2.1:5353', '[2001:db8::1]:53'], B.test.: ['::2']}", ""},
		{"upstreamNameservers: [192.0.2.1, '127.0.0.1:5353']", ""},
		{"stubDomains: {acme.local: []}", "has no server"},
		{"stubDomains: {acme.local: [ns.acme.local]}", "is not an address"},
		{"stubDomains: {acme.local: ['192.0.2.1:http']}", "is not an address"},
		{"stubDomains: {'-': [192.0.2.1]}", "stubDomains:"},
		{"stubDomains: {Cluster.Local: [192.0.2.1]}", "the cluster's own"},
		{"stubDomains: {acme.local: ['10.96.0.10:53']}", "this server itself"},
		{"dnsSearchCompletion: None", ""},
	} {
		file := filepath.Join(t.TempDir(), "agent.yaml")
		if err := os.WriteFile(file, []byte(x.text), 0o600); err != nil {
			t.Fatal(err)
		}
		c := Default()
		c.NodeName = "n"
		err := errors.Join(c.Load(file), c.Validate())
		if x.want == "" && err != nil || x.want != "" && (err == nil || !strings.Contains(err.Error(), x.want)) {
			t.Errorf("%s: %v", x.text, err)
		}
	}
}

// TestTwoFamilies: DS-5; a pair has one of each family.
func TestTwoFamilies(t *testing.T) {
	for _, c := range []struct {
		set func(*Config)
		bad string // the field that is refused, "" for none
	}{
		{func(c *Config) { c.NodeIP = "192.0.2.1, 2001:db8::1" }, ""},
		{func(c *Config) { c.NodeIP = "192.0.2.1,192.0.2.2" }, "nodeIP"},
		{func(c *Config) { c.NodeIP = "0.0.0.0,2001:db8::1" }, "nodeIP"},
		{func(c *Config) { c.NodeIP = "192.0.2.1,::" }, "nodeIP"},
		{func(c *Config) { c.ClusterCIDR = "fd00:1::/56,10.244.0.0/16,10.245.0.0/16" }, ""},
		{func(c *Config) { c.ClusterCIDR = "10.244.0.0/16,10.244.1.0/24" }, "clusterCIDR"},
		{func(c *Config) { c.ServiceCIDR = "10.96.0.0/16,fd00:2::/112" }, ""},
		{func(c *Config) { c.ServiceCIDR = "10.96.0.0/16,10.97.0.0/16" }, "serviceCIDR"},
		{func(c *Config) { c.PodCIDR = "10.244.1.0/24,fd00:1::/64" }, ""},
		{func(c *Config) { c.PodCIDR = "10.244.1.0/24," }, "podCIDR"},
	} {
		cfg := Default()
		cfg.NodeName = "n"
		c.set(&cfg)
		err := cfg.Validate()
		if c.bad == "" && err != nil || c.bad != "" && (err == nil || !strings.Contains(err.Error(), c.bad)) {
			t.Errorf("%q %q %q %q: %v, want %q", cfg.NodeIP, cfg.ClusterCIDR, cfg.ServiceCIDR, cfg.PodCIDR, err, c.bad)
		}
	}
}

// The agent makes its Node unless a flag or the file says otherwise; the flag wins.
func TestRegisterNode(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(file, []byte("registerNode: false\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]bool{
		"": true, "--register-node=false": false, "--config " + file: false,
		"--config " + file + " --register-node": true,
	} {
		c, err := Parse(strings.Fields(args))
		if err != nil || c.Registers() != want || !c.Proxy() {
			t.Errorf("%q: %v, registers %t, proxy %t", args, err, c.Registers(), c.Proxy())
		}
	}
}
