package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/coordinator/members"
)

// TestWhatTheClusterHasAlikeIsRead: a coordinator that joins reads what was added to its file;
// where it would not, as behind a map in braces, it is told to the administrator and nothing
// is written.
func TestWhatTheClusterHasAlikeIsRead(t *testing.T) {
	b := members.Bundle{Gossip: []string{"192.0.2.1:7946"}, Settings: members.Settings{ServiceCIDR: "10.50.0.0/16"}}
	for name, c := range map[string]struct {
		text string
		ok   bool
	}{
		"lines":            {"nodeName: second\n", true},
		"without an end":   {"nodeName: second", true},
		"a comment":        {"# of this machine\n", true},
		"a beginning":      {"---\nnodeName: second\n", true},
		"a map in braces":  {`{"nodeName": "second"}`, false},
		"an end":           {"nodeName: second\n...\n", false},
		"another document": {"nodeName: second\n---\n", false},
	} {
		file := filepath.Join(t.TempDir(), "coordinator.yaml")
		if err := os.WriteFile(file, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Load(file)
		if err != nil {
			t.Fatal(name, err)
		}
		// Fields of the settings that are empty here stay out of it.
		b.Settings.ClusterCIDR, b.Settings.ClusterDNS, b.Settings.ClusterDomain, b.Settings.NodePortRange =
			cfg.ClusterCIDR, cfg.ClusterDNS, cfg.ClusterDomain, cfg.NodePortRange
		err = agree(cfg, file, b)
		text, readErr := os.ReadFile(file)
		if readErr != nil {
			t.Fatal(readErr)
		}
		if !c.ok {
			if err == nil || !strings.Contains(err.Error(), "serviceCIDR: 10.50.0.0/16") || string(text) != c.text {
				t.Errorf("%s: %v; the file is now %q", name, err, text)
			}
			continue
		}
		cfg, readErr = config.Load(file)
		if err != nil || readErr != nil || cfg.ServiceCIDR != "10.50.0.0/16" || len(cfg.GossipJoin) != 1 {
			t.Errorf("%s: %v, %v; read back: %q %q", name, err, readErr, cfg.ServiceCIDR, cfg.GossipJoin)
		}
	}
}
