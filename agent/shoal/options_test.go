package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	agentconfig "github.com/shoal-project/shoal/agent/config"
	coordinatorconfig "github.com/shoal-project/shoal/coordinator/config"
)

// TestSavedOptions: what up writes is what down and status read, and what the
// daemons take.
func TestSavedOptions(t *testing.T) {
	o := defaultOptions()
	o.DataDir, o.NodeName, o.NodeIP, o.Port, o.GossipPort = t.TempDir(), "n1", "192.0.2.1", 7443, 8000
	o.ClusterDNS, o.CgroupRoot = "10.96.0.53", "/other"
	o.EvictionHard = map[string]string{"nodefs.available": "3%"}
	o.Encryption = true
	o.RuntimeHandlers = map[string]string{"kata": "/usr/bin/kata-runtime"}
	if err := o.save(); err != nil {
		t.Fatal(err)
	}
	loaded, err := load(o.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(o, loaded); d != "" {
		t.Errorf("-saved, +loaded:\n%s", d)
	}

	want := agentconfig.Default()
	want.NodeName, want.NodeIP, want.CgroupRoot = "n1", "192.0.2.1", "/other"
	want.DataDir, want.ImagesDir = filepath.Join(o.DataDir, "agent"), filepath.Join(o.DataDir, "images")
	want.Kubeconfig = filepath.Join(o.DataDir, "agent", "kubeconfig")
	want.ClientCAFile = filepath.Join(o.DataDir, "coordinator", "pki", "ca.crt")
	want.GossipKeyFile = filepath.Join(o.DataDir, "coordinator", "pki", "gossip.key")
	want.GossipPort, want.Join = 8000, []string{"127.0.0.1:8001"}
	want.ClusterDNS, want.Encryption = []string{"10.96.0.53"}, true
	want.EvictionHard["nodefs.available"] = "3%" // the others stay
	want.RuntimeHandlers = map[string]string{"kata": "/usr/bin/kata-runtime"}
	agent, err := agentconfig.Parse([]string{"--config", o.path("agent.yaml")})
	if err == nil {
		err = agent.Validate()
	}
	if d := cmp.Diff(want, agent); d != "" || err != nil {
		t.Errorf("agent.yaml: %v\n%s", err, d)
	}

	coordinator := coordinatorconfig.Default()
	coordinator.DataDir, coordinator.Port, coordinator.NodeName = o.DataDir, 7443, "n1"
	coordinator.AdvertiseAddress, coordinator.GossipPort, coordinator.ClusterDNS = "192.0.2.1", 8001, "10.96.0.53"
	got, err := coordinatorconfig.Load(o.path("coordinator.yaml"))
	if err == nil {
		err = got.Validate()
	}
	if d := cmp.Diff(coordinator, got); d != "" || err != nil {
		t.Errorf("coordinator.yaml: %v\n%s", err, d)
	}
}

// TestOptionsOfAnEarlierVersion: what it did not know has its default.
func TestOptionsOfAnEarlierVersion(t *testing.T) {
	o := defaultOptions()
	o.DataDir, o.RegistryConfigDir = t.TempDir(), ""
	if err := o.save(); err != nil {
		t.Fatal(err)
	}
	loaded, err := load(o.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	got := loaded.agentConfig()
	if got.RegistryConfigDir != agentconfig.Default().RegistryConfigDir {
		t.Errorf("registries are looked up in %q", got.RegistryConfigDir)
	}
}

// TestLongDataDir: who names a directory that sockets cannot lie in is told so at once.
func TestLongDataDir(t *testing.T) {
	for length, refused := range map[int]bool{84: false, 85: true} {
		o := defaultOptions()
		o.DataDir = "/" + strings.Repeat("d", length-1)
		if err := o.complete(); (err != nil) != refused || refused && !strings.Contains(err.Error(), "at most 84 bytes") {
			t.Errorf("a path of %d bytes: %v", length, err)
		}
	}
}
