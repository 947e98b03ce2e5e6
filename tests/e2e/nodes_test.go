package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/util/cert"

	agentconfig "github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/tests/harness"
)

const onNode = `{apiVersion: v1, kind: Pod, metadata: {name: %s, labels: {app: %s}}, spec: {nodeName: %s, terminationGracePeriodSeconds: 0,
  containers: [{name: c, image: "%s", %s}]}}`

// TestTwoNodes: an agent joins from a machine of its own. Its pods are reached
// from the other node's pods and by Service. When it dies its Node turns
// NotReady and its endpoints leave the slices in seconds; when it is back it is
// Ready and its pods were not touched.
func TestTwoNodes(t *testing.T) {
	s := newSpace(t)
	began := time.Now()
	agent, err := cluster.Join("node2")
	if err != nil {
		t.Fatal(err)
	}
	defer leave(t, agent, "node2")
	s.shows("node2", "get", "nodes", "-o", "name")
	s.k("wait", "node/node2", "--for=condition=Ready", "--timeout=30s")
	t.Logf("node2 Ready %v after its start", time.Since(began).Round(10*time.Millisecond))

	s.apply(fmt.Sprintf(onNode, "near", "none", "node1", "localhost/busybox:1", `command: [sleep, "9999"]`))
	s.apply(fmt.Sprintf(onNode, "far", "far", "node2", "localhost/hello:1", ""))
	s.apply(fmt.Sprintf(onNode, "home", "home", "node1", "localhost/hello:1", ""))
	s.apply(fmt.Sprintf(onNode, "guest", "none", "node2", "localhost/busybox:1", `command: [sleep, "9999"]`))
	s.ready("near", "far", "home", "guest")
	s.k("expose", "pod", "far", "--port=80", "--target-port=8080")
	s.k("expose", "pod", "home", "--port=80", "--target-port=8080")
	ip := s.k("get", "pod", "far", "-o", "jsonpath={.status.podIP}")
	address := s.k("get", "service", "far", "-o", "jsonpath={.spec.clusterIP}")
	for _, c := range []struct{ from, url, want string }{
		{"near", "http://" + ip + ":8080", "Hello from pod far on node node2"},
		{"near", "http://" + address, "Hello from pod far on node node2"},
		{"near", "http://far", "Hello from pod far on node node2"},
		{"guest", "http://home", "Hello from pod home on node node1"},
		{"guest", "http://far", "Hello from pod far on node node2"}, // back to its own node
	} {
		harness.Eventually(t, c.from+" gets "+c.url, func() (bool, string) {
			out, err := s.fetch(c.from, c.url)
			return err == nil && strings.HasPrefix(out, c.want), fmt.Sprint(out, err)
		})
	}
	start := s.exec("guest", "cat", "/proc/1/stat")

	began = time.Now()
	if err := agent.Kill(); err != nil {
		t.Fatal(err)
	}
	s.field("node/node2", `.status.conditions[?(@.type=="Ready")].status`, "Unknown")
	t.Logf("NotReady %v after the agent's death", time.Since(began).Round(100*time.Millisecond))
	slice := []string{"get", "endpointslices", "-l", "kubernetes.io/service-name=far", "-o", "jsonpath={.items[*].endpoints[*].conditions.ready}"}
	s.until("false", slice...)
	t.Logf("endpoint not ready %v after the agent's death", time.Since(began).Round(100*time.Millisecond))

	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	s.field("node/node2", `.status.conditions[?(@.type=="Ready")].status`, "True")
	s.until("true", slice...)
	t.Logf("Ready again %v after the agent's start", time.Since(began).Round(100*time.Millisecond))
	if now := s.exec("guest", "cat", "/proc/1/stat"); strings.Fields(now)[21] != strings.Fields(start)[21] {
		t.Errorf("the pod restarted: %s then %s", start, now)
	}
	s.field("pod/guest", ".status.containerStatuses[0].restartCount", "0")
}

// TestNodeAddresses: NODE-20. A Node shows the addresses that reach it from outside, its
// certificate is for them too, and kubectl reads its pods' logs.
func TestNodeAddresses(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	agent, err := cluster.Host("public", func(a *harness.Agent, c *agentconfig.Config) {
		c.NodeExternalIPs = []string{"198.51.100.7", "198.51.100.8"}
		c.LoggingFormat = "json"
		c.RegisterWithTaints = []string{"only=this:NoSchedule"}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer leave(t, agent, "public")
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	s.k("wait", "node/public", "--for=create", "--timeout=60s")
	s.k("wait", "node/public", "--for=condition=Ready", "--timeout=60s")
	s.says("InternalIP="+agent.Address+" ExternalIP=198.51.100.7 ExternalIP=198.51.100.8 Hostname=public",
		"get", "node/public", "-o", `jsonpath={range .status.addresses[*]}{.type}={.address} {end}`)
	s.field("node/public", `.status.conditions[?(@.type=="NetworkUnavailable")].reason`, "ShoalNetworkIsUp")
	wide := strings.Fields(s.k("get", "node/public", "-o", "wide", "--no-headers"))
	if !slices.Contains(wide, "198.51.100.7") {
		t.Errorf("kubectl get -o wide: %q", wide)
	}
	s.apply(strings.ReplaceAll(fmt.Sprintf(done, "said"), "few", "public"))
	s.shows("I am said", "logs", "said")
	harness.Eventually(t, "the certificate has all addresses", func() (bool, string) {
		data, err := os.ReadFile(filepath.Join(agent.Dir, "agent", "kubelet-serving.pem"))
		if err != nil {
			return false, err.Error()
		}
		certs, err := cert.ParseCertsPEM(data)
		if err != nil {
			return false, err.Error()
		}
		got := fmt.Sprint(certs[0].IPAddresses)
		return got == "["+agent.Address+" 198.51.100.7 198.51.100.8]", got
	})
	log, err := os.ReadFile(filepath.Join(agent.Dir, "agent.log"))
	if err != nil || len(log) == 0 {
		t.Errorf("there is no log: %v", err)
	}
	for line := range strings.Lines(string(log)) { // SLG-7
		var record struct {
			TS  float64 `json:"ts"`
			Msg string  `json:"msg"`
		}
		if err := json.Unmarshal([]byte(line), &record); err != nil || record.TS == 0 || record.Msg == "" {
			t.Errorf("no record in JSON: %s", line)
		}
	}
}
