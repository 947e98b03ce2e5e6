package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	agentconfig "github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/tests/harness"
)

// third is somebody else's network: the plugin of this one, with other names.
const third = `{"cniVersion": "1.0.0", "name": "third", "plugins": [{"type": "shoal-cni", "bridge": "third0", "table": "third",
  "podCIDRs": ["10.88.0.0/24"], "stateDir": %q, "capabilities": {"portMappings": true}}]}`

// installNetwork does what the installer of a network does on a node.
func installNetwork(t *testing.T, c *harness.Cluster, dir, confDir, binDir string) {
	t.Helper()
	for _, d := range []string{confDir, binDir} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(c.Bin, "shoal-cni"), filepath.Join(binDir, "shoal-cni")); err != nil {
		t.Fatal(err)
	}
	// Written beside and renamed, as installers do.
	file := filepath.Join(confDir, "10-third.conflist")
	if err := os.WriteFile(file+".new", fmt.Appendf(nil, third, filepath.Join(dir, "third")), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// uninstallNetwork removes what the network leaves on a node.
func uninstallNetwork(t *testing.T, netns string) {
	t.Helper()
	for _, command := range []string{
		"ip link delete third0", "nft delete table ip third", "nft delete table bridge third",
	} {
		words := strings.Fields(command)
		if out, err := harness.Command(netns, words[0], words[1:]...).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", command, err, out)
		}
	}
}

// TestNetworkArrives: a third party's network comes to a node whose pods run. They
// answer on its addresses, the built-in bridge and tables are gone, and come back
// with the pods when the network goes. A node with podNetwork: none waits for it.
func TestNetworkArrives(t *testing.T) {
	t.Parallel() // with a cluster of its own
	c, err := harness.Start("cni")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			t.Log(c.Logs())
		}
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	}()
	c.MustWith(t, `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      nodeSelector: {kubernetes.io/hostname: node1}
      containers: [{name: c, image: "localhost/hello:1", readinessProbe: {httpGet: {port: 8080}}}]
---
{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: host}, spec: {nodeName: node1, hostNetwork: true, terminationGracePeriodSeconds: 0,
  containers: [{name: c, image: "localhost/busybox:1", command: [sleep, "9999"]}]}}
`, "apply", "-f", "-")
	c.Must(t, "rollout", "status", "deployment/web", "--timeout=60s")
	c.Must(t, "wait", "pod/host", "--for=condition=Ready", "--timeout=60s")

	waits, err := c.Host("node2", func(_ *harness.Agent, cfg *agentconfig.Config) { cfg.PodNetwork = "none" })
	if err != nil {
		t.Fatal(err)
	}
	if err := waits.Start(); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "a node without a network says so", func() (bool, string) {
		out, err := c.Kubectl("", "get", "node", "node2", "-o",
			`jsonpath={range .status.conditions[?(@.type=="Ready")]}{.status} {.reason} {.message}{end}`)
		return out == "False KubeletNotReady container runtime network not ready: NetworkReady=false "+
				"reason:NetworkPluginNotReady message:Network plugin returns error: cni plugin not initialized",
			fmt.Sprint(out, err)
	})
	installNetwork(t, c, waits.Dir, filepath.Join(waits.Dir, "cni-conf"), filepath.Join(waits.Dir, "cni-bin"))
	c.Must(t, "wait", "node/node2", "--for=condition=Ready", "--timeout=60s")

	conf := filepath.Join(c.Dir, "cni-conf")
	installNetwork(t, c, c.Dir, conf, filepath.Join(c.Dir, "cni-bin"))
	connected(t, c, "10.88.0.", 1)
	saysOfNetwork(t, c, "node1", "")
	saysOfNetwork(t, c, "node2", "")
	if out, err := c.Run("ip", "link", "show", "shoal0"); err == nil {
		t.Errorf("the bridge is left: %s", out)
	}
	if out, err := c.Run("nft", "list", "tables"); err != nil || strings.Contains(out, "shoal-pods") {
		t.Errorf("tables are left: %s, %v", out, err)
	}
	if got := c.Must(t, "get", "pod", "host", "-o", "jsonpath={.status.containerStatuses[0].restartCount}"); got != "0" {
		t.Errorf("the pod in the node's network was restarted %s times", got)
	}
	if out := c.Must(t, "get", "events", "--field-selector=reason=SandboxChanged"); !strings.Contains(out, "pod/web-") {
		t.Errorf("events: %s", out)
	}

	if err := os.RemoveAll(conf); err != nil {
		t.Fatal(err)
	}
	connected(t, c, "10.244.", 2)
	saysOfNetwork(t, c, "node1", "ShoalNetworkIsUp")
	uninstallNetwork(t, c.NetNS)
	if err := os.RemoveAll(filepath.Join(waits.Dir, "cni-conf")); err != nil {
		t.Fatal(err)
	}
	c.Must(t, "wait", "node/node2", "--for=condition=Ready=False", "--timeout=60s")
}

// saysOfNetwork waits for the reason of the condition NetworkUnavailable of a node, which is
// the agent's where the network is (NODE-23).
func saysOfNetwork(t *testing.T, c *harness.Cluster, node, want string) {
	t.Helper()
	harness.Eventually(t, node+" says of its network "+want, func() (bool, string) {
		out, err := c.Kubectl("", "get", "node", node, "-o",
			`jsonpath={.status.conditions[?(@.type=="NetworkUnavailable")].reason}`)
		return err == nil && out == want, fmt.Sprint(out, err)
	})
}

// connected waits until both pods answer on addresses that begin so, after so many
// restarts, and the Service leads to them.
func connected(t *testing.T, c *harness.Cluster, begin string, restarts int) {
	t.Helper()
	harness.Eventually(t, "pods are connected by the network of "+begin, func() (bool, string) {
		out, err := c.Kubectl("", "get", "pods", "-l", "app=web", "-o", `jsonpath={range .items[*]}{.status.podIP} `+
			`{.status.containerStatuses[0].ready} {.status.containerStatuses[0].restartCount}{"\n"}{end}`)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		for _, line := range lines {
			ip, state, _ := strings.Cut(line, " ")
			if !strings.HasPrefix(ip, begin) || state != fmt.Sprint("true ", restarts) {
				return false, fmt.Sprint(out, err)
			}
		}
		return len(lines) == 2, fmt.Sprint(out, err)
	})
	for _, ip := range strings.Fields(c.Must(t, "get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].status.podIP}")) {
		if err := get(c.NetNS, ip+":8080"); err != nil {
			t.Errorf("pod at %s: %v", ip, err)
		}
	}
	service := c.Must(t, "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
	harness.Eventually(t, "the Service leads there", func() (bool, string) {
		err := get(c.NetNS, service+":80")
		return err == nil, fmt.Sprint(err)
	})
}

// get asks a server once, by a connection of its own from a network namespace.
func get(netns, address string) error {
	var conn net.Conn
	err := harness.Inside(netns, func() (err error) {
		conn, err = net.DialTimeout("tcp", address, 20*time.Second)
		return err
	})
	if err != nil {
		return err
	}
	client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return conn, nil },
	}}
	resp, err := client.Get("http://" + address)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// TestRollout: while a Deployment behind a Service rolls, and then leaves a node that is
// drained, every request is answered, from either node, though the server exits at once when
// it is told to end, and has no preStop hook.
func TestRollout(t *testing.T) {
	t.Parallel() // with a cluster of its own
	c, err := harness.Start("roll")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			t.Log(c.Logs())
		}
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	}()
	other, err := c.Join("node2")
	if err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the other node is there", func() (bool, string) {
		_, err := c.Kubectl("", "wait", "node/node2", "--for=condition=Ready", "--timeout=5s")
		return err == nil, fmt.Sprint(err)
	})
	c.MustWith(t, `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: c, image: "localhost/hello:1", readinessProbe: {httpGet: {port: 8080}}}]
---
{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}}
`, "apply", "-f", "-")
	c.Must(t, "rollout", "status", "deployment/web", "--timeout=60s")
	service := c.Must(t, "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}") + ":80"
	netns := []string{c.NetNS, other.NetNS}
	for _, ns := range netns {
		harness.Eventually(t, "the Service answers", func() (bool, string) {
			err := get(ns, service)
			return err == nil, fmt.Sprint(err)
		})
	}

	var (
		mu            sync.Mutex
		answered, bad int
		last          error
		wg            sync.WaitGroup
	)
	ended := make(chan struct{})
	for i := range 4 {
		wg.Go(func() {
			for {
				select {
				case <-ended:
					return
				default:
				}
				err := get(netns[i%2], service)
				mu.Lock()
				if err == nil {
					answered++
				} else {
					bad, last = bad+1, err
				}
				mu.Unlock()
			}
		})
	}
	// ROLLOUT_REQUESTS has ten rollouts and two drains go on among so many requests.
	rolls, drains, want := 3, 1, 0
	if n, err := strconv.Atoi(os.Getenv("ROLLOUT_REQUESTS")); err == nil {
		rolls, drains, want = 10, 2, n
	}
	steps := 0
	step := func() {
		steps++
		for {
			mu.Lock()
			enough := answered >= want*steps/(rolls+drains) || bad > 0
			mu.Unlock()
			if enough {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	roll := func(name string) { // not "rollout restart", which refuses a second one within a second
		c.Must(t, "patch", "deployment/web", "-p",
			fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"rollout":%q}}}}}`, name))
		c.Must(t, "rollout", "status", "deployment/web", "--timeout=60s")
	}
	for i := range rolls {
		roll(strconv.Itoa(i))
		step()
	}
	for i := range drains {
		c.Must(t, "uncordon", "node2")
		roll(fmt.Sprint("spread", i))
		c.Must(t, "drain", "node2", "--ignore-daemonsets", "--timeout=60s")
		c.Must(t, "rollout", "status", "deployment/web", "--timeout=60s")
		step()
	}
	close(ended)
	wg.Wait()
	t.Logf("%d answered, %d without an answer", answered, bad)
	if bad > 0 || answered == 0 {
		t.Errorf("%d requests had no answer: %v", bad, last)
	}
}
