package main

import (
	"reflect"
	"testing"
)

// TestAgentConfiguration: what the suite writes for a kubelet becomes the agent's, but for
// where the node is; what it leaves out has the default again.
func TestAgentConfiguration(t *testing.T) {
	base := map[string]any{"nodeName": "node1", "rootDir": "/var/lib/kubelet", "maxPods": 5, "clientCAFile": "ca.crt",
		"systemReserved": map[string]any{"cpu": "100m"}}
	kubelet := map[string]any{
		"kind": "KubeletConfiguration", "podCIDR": "10.0.0.0/8", "cpuManagerPolicy": "static",
		"serializeImagePulls": true,
		"crashLoopBackOff":    map[string]any{"maxContainerRestartPeriod": "1m0s"},
		"registerWithTaints":  []any{map[string]any{"key": "a", "effect": "NoSchedule"}},
		"authentication":      map[string]any{"x509": map[string]any{"clientCAFile": "another.crt"}},
	}
	want := map[string]any{
		"nodeName": "node1", "rootDir": "/var/lib/kubelet", "cpuManagerPolicy": "static", "maxParallelImagePulls": 1,
		"maxContainerRestartPeriod": "1m0s", "registerWithTaints": []string{"a=:NoSchedule"}, "clientCAFile": "another.crt",
	}
	if got := agentConfiguration(base, kubelet); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
