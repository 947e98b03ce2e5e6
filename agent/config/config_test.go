package config

import (
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
	c.Conntrack.TCPCloseWaitTimeout.Duration = -1
	c.Tracing = &Tracing{Endpoint: "http://collector:4317", SamplingRatePerMillion: 1_000_001}
	err := c.Validate()
	for _, field := range []string{"nodeName", "nodeIP", "port", "clusterCIDR", "runDir", "podNetwork",
		"proxyHealthzBindAddress", "proxyMetricsBindAddress", "conntrack.tcpCloseWaitTimeout",
		"tracing.endpoint", "tracing.samplingRatePerMillion"} {
		if err == nil || !strings.Contains(err.Error(), field+":") {
			t.Errorf("%s is not told: %v", field, err)
		}
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
	none := int64(0)
	c.PodPidsLimit = &none
	c.SystemReserved = map[string]string{"pids": "1"}
	c.KubeReserved = map[string]string{"pid": "-1"}
	err := c.Validate()
	for _, want := range []string{"podPidsLimit: 0", `systemReserved: "pids" cannot be reserved`, `kubeReserved: pid: "-1" must not be negative`} {
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
	c.EvictionPressureTransitionPeriod.Duration = -1
	err := c.Validate()
	for _, field := range []string{"evictionMaxPodGracePeriod", "imageGCLowThresholdPercent", "imageMaximumGCAge",
		"evictionPressureTransitionPeriod"} {
		if err == nil || !strings.Contains(err.Error(), field+":") {
			t.Errorf("%s is not told: %v", field, err)
		}
	}
}
