package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestOthersChangeTheNetwork: what firewalls, network managers and sysctls do to a node
// that knows nothing of them is made right when it happens: a pod asks a Service by name,
// and the node asks by the cluster IP and a node port.
func TestOthersChangeTheNetwork(t *testing.T) {
	s := newSpace(t)
	s.k("create", "deployment", "hello", "--image=localhost/hello:1", "--replicas=2")
	s.k("rollout", "status", "deployment/hello", "--timeout=60s")
	s.k("expose", "deployment", "hello", "--port=80", "--target-port=8080", "--type=NodePort")
	s.sleeper("client")
	s.gets("client", "http://hello", "Hello")
	ip := s.k("get", "service", "hello", "-o", "jsonpath={.spec.clusterIP}")
	port := s.k("get", "service", "hello", "-o", "jsonpath={.spec.ports[0].nodePort}")
	peer := s.k("get", "pods", "-l", "app=hello", "-o", "jsonpath={.items[0].status.podIP}")
	well := func() error {
		for _, url := range []string{"http://" + ip, fmt.Sprintf("http://%s:%s", cluster.Address, port)} {
			out, err := cluster.Run("curl", "-sS", "-m", "1", url)
			if err != nil || !strings.HasPrefix(out, "Hello") {
				return fmt.Errorf("the node asks %s: %w: %s", url, err, out)
			}
		}
		for _, url := range []string{"http://hello", "http://" + peer + ":8080"} {
			if out, err := s.fetch("client", url); err != nil || !strings.HasPrefix(out, "Hello") {
				return fmt.Errorf("a pod asks %s: %w: %s", url, err, out)
			}
		}
		return nil
	}
	if err := well(); err != nil {
		t.Fatal(err)
	}
	bridge := "shoal0"
	for _, damage := range []string{
		"nft flush ruleset",
		"sysctl -qw net.ipv4.ip_forward=0",
		"ip link set " + bridge + " down",
		"ip addr flush dev " + bridge,
		"ip route flush dev " + bridge,
		"ip link del " + bridge,
		"ip addr flush dev lo scope global",
	} {
		f := strings.Fields(damage)
		if out, err := cluster.Run(f[0], f[1:]...); err != nil {
			t.Fatal(damage, out, err)
		}
		// Who looks from time to time finds it within a minute.
		began := time.Now()
		err := well()
		for err != nil && time.Since(began) < 20*time.Second {
			time.Sleep(100 * time.Millisecond)
			err = well()
		}
		if err != nil {
			t.Errorf("%s: not well within 20 s: %v", damage, err)
		}
		t.Logf("%s: well after %s", damage, time.Since(began).Round(10*time.Millisecond))
	}
}
