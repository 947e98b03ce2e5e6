package config

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

const header = "apiVersion: " + APIVersion + "\nkind: " + Kind + "\n"

// write makes files of a directory, by their names in it.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestJSON: the configuration is its own text, so that files can be merged into it.
func TestJSON(t *testing.T) {
	c := Default()
	c.Port, c.EvictionHard, c.ProxyMetricsBindAddress = 0, map[string]string{}, ""
	c.FileCheckFrequency.Duration = 0
	text, err := json.Marshal(&c)
	if err != nil {
		t.Fatal(err)
	}
	again := Config{Hollow: c.Hollow}
	if err := json.Unmarshal(text, &again); err != nil {
		t.Fatal(err)
	}
	again.EvictionHard = map[string]string{} // none is none
	if !reflect.DeepEqual(c, again) {
		t.Errorf("it was\n%+v\nand is\n%+v", c, again)
	}
}

// TestConfigDir: files of a directory go before the configuration file, and flags before both.
func TestConfigDir(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"agent.yaml": "port: 1\nmaxPods: 7\nsystemReserved: {cpu: 100m, memory: 1Gi}\nclusterDNS: [192.0.2.1]\n" +
			"shutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 5}]\n" +
			"evictionHard: {memory.available: 1Gi, nodefs.available: 3%}\ngateway: {accessLog: true}\n",
		"d/20-b.conf": header + "systemReserved: {memory: 2Gi}\nclusterDNS: [192.0.2.3, 192.0.2.4]\nport: 0\n" +
			"shutdownGracePeriodByPodPriority: [{priority: 2}]\ngateway: {ingressHTTPPort: 8080}\n",
		"d/10-a.conf": header + "systemReserved: {memory: 5Gi, pid: '9'}\nclusterDNS: [192.0.2.2]\nmaxPods: 8\n" +
			"evictionHard: {memory.available: 2Gi}\nimageMaximumGCAge: 1h\n",
		"d/15/deep.conf":   header + "nodeName: deep\n",
		"d/30.yaml":        "maxPods: 9\n", // another suffix
		"d/README":         "no: [yaml",
		"d/40-nulls.conf":  header + "imageMaximumGCAge: null\nmemorySwap: null\nevictionHard: {nodefs.available: null}\n",
		"d/00-first.conf":  header + "cpuCFSQuotaPeriod: 50ms\nimageMaximumGCAge: 2h\n",
		"d/50-flags.conf":  header + "bridge: other0\n",
		"d/60-merges.conf": header + "mergeDefaultEvictionSettings: true\n",
	})
	c, err := Parse([]string{"--config", filepath.Join(dir, "agent.yaml"), "--config-dir", filepath.Join(dir, "d"),
		"--bridge", "own0"})
	if err != nil {
		t.Fatal(err)
	}
	type fields struct {
		Port, MaxPods, HTTP         int
		Log                         bool
		Node, Bridge, Swap, RootDir string
		Reserved, Hard              map[string]string
		DNS                         []string
		Shutdown                    []ShutdownGracePeriod
		Age, Quota                  time.Duration
	}
	got := fields{c.Port, c.MaxPods, c.Gateway.IngressHTTPPort, c.Gateway.AccessLog, c.NodeName, c.Bridge,
		c.MemorySwap.SwapBehavior, c.RootDir, c.SystemReserved, c.EvictionHard, c.ClusterDNS,
		c.ShutdownGracePeriodByPodPriority, c.ImageMaximumGCAge.Duration, c.CPUCFSQuotaPeriod.Duration}
	hard := Default().EvictionHard
	hard["memory.available"] = "2Gi"
	want := fields{
		Port: 0, MaxPods: 8, HTTP: 8080, Log: true, Node: "deep", Bridge: "own0", Swap: NoSwap, RootDir: "/var/lib/kubelet",
		Reserved: map[string]string{"cpu": "100m", "memory": "2Gi", "pid": "9"}, Hard: hard,
		DNS: []string{"192.0.2.3", "192.0.2.4"}, Shutdown: []ShutdownGracePeriod{{Priority: 2}},
		Quota: 50 * time.Millisecond,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
}

// TestConfigDirFaults: what is wrong in a file is told with its name, and what has to be there.
func TestConfigDirFaults(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"no type":       {"maxPods: 3\n", APIVersion},
		"another type":  {"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n", Kind},
		"unknown field": {header + "maxPod: 3\n", "maxPod"},
		"twice":         {header + "maxPods: 3\nmaxPods: 4\n", "maxPods"},
		"no map":        {"[1]\n", "1.conf"},
		"wrong value":   {header + "maxPods: many\n", "maxPods"},
	} {
		dir := t.TempDir()
		write(t, dir, map[string]string{"1.conf": tt.text})
		_, err := Parse([]string{"--config-dir", dir})
		if err == nil || !strings.Contains(err.Error(), "--config-dir") || !strings.Contains(err.Error(), "1.conf") ||
			!strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Parse([]string{"--config-dir", "/nowhere"}); err == nil || !strings.Contains(err.Error(), "/nowhere") {
		t.Errorf("no directory: %v", err)
	}
	dir := t.TempDir()
	write(t, dir, map[string]string{"1.conf": header + "later: 1\nmaxPods: 5\n"})
	if c, err := ParseKnown([]string{"--config-dir", dir}); err != nil || c.MaxPods != 5 {
		t.Errorf("who undoes what another version did: %d, %v", c.MaxPods, err)
	}
}
