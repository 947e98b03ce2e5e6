package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	agentconfig "github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/tests/harness"
)

// shoal runs the command on the agent's machine and returns both streams.
func shoalOn(a *harness.Agent, args ...string) (string, error) {
	out, err := a.Command(filepath.Join(cluster.Bin, "shoal"), args...).CombinedOutput()
	return string(out), err
}

// TestJoinByToken: a machine joins with nothing but a token, runs a pod that others
// reach, has the cluster change under it, and leaves; what is wrong is told in a sentence.
func TestJoinByToken(t *testing.T) {
	s := newSpace(t)
	agent, err := cluster.Host("joiner", func(_ *harness.Agent, c *agentconfig.Config) {
		c.GossipKeyFile, c.Join, c.ClusterDNS, c.ClientCAFile = "", nil, nil, ""
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			t.Log(agent.Logs())
		}
		if err := agent.Stop(); err != nil {
			t.Error(err)
		}
	}()
	config, kubeconfig := filepath.Join(agent.Dir, "agent.yaml"), filepath.Join(agent.Dir, "kubeconfig")
	if err := os.Remove(kubeconfig); err != nil { // the harness's
		t.Fatal(err)
	}
	create := func(args ...string) string {
		t.Helper()
		out, err := cluster.Run(filepath.Join(cluster.Bin, "shoal"), append([]string{"token", "create", "--data-dir",
			cluster.Dir}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(out)
	}
	joins := func(token string, args ...string) (string, error) {
		return shoalOn(agent, append([]string{"join", token, "--config", config}, args...)...)
	}
	refused := func(want, token string, args ...string) {
		t.Helper()
		out, err := joins(token, args...)
		if err == nil || !strings.Contains(out, want) || strings.Count(strings.TrimSpace(out), "\n") > 1 {
			t.Errorf("want %q, got %v: %s", want, err, out)
		}
		if _, err := os.Stat(kubeconfig); err == nil {
			t.Errorf("%s: the kubeconfig was written", want)
		}
	}
	token := create()
	refused("a live Node has the name node1", token, "--node-name", "node1", "--no-start")
	refused("copy the whole line", token[:len(token)-5])
	deleted := create()
	if _, err := cluster.Run(filepath.Join(cluster.Bin, "shoal"), "token", "delete", deleted, "--data-dir",
		cluster.Dir); err != nil {
		t.Fatal(err)
	}
	refused("used up or deleted", deleted)
	refused("no coordinator answers at the token's addresses: 192.0.2.1:6443: ", create("--server", "192.0.2.1:6443"))

	if out, err := joins(token, "--no-start"); err != nil {
		t.Fatal(err, out)
	}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	out, err := joins(token)
	if err != nil || !strings.Contains(out, "is node joiner of that cluster already") ||
		!strings.Contains(out, "node joiner is Ready") {
		t.Fatal(err, out)
	}
	t.Log(out)

	s.apply(fmt.Sprintf(onNode, "here", "here", "node1", "localhost/busybox:1", `command: [sleep, "9999"]`))
	s.apply(fmt.Sprintf(strings.Replace(deploymentOn, "NODE", "joiner", 1), "localhost/hello:1"))
	s.k("rollout", "status", "deployment/there", "--timeout=60s")
	s.ready("here")
	s.k("expose", "deployment", "there", "--port=80", "--target-port=8080")
	harness.Eventually(t, "the pod there answers", func() (bool, string) {
		out, err := s.fetch("here", "http://there")
		return err == nil && strings.Contains(out, "on node joiner"), fmt.Sprint(out, err)
	})

	// Without a unit the agent is the administrator's to stop: leaving says so, and
	// goes on where it was.
	out, err = shoalOn(agent, "leave", "--config", config)
	if err == nil || !strings.Contains(out, "is drained") || !strings.Contains(out, "stop the agent of this machine") {
		t.Fatal(err, out)
	}
	if err := agent.Kill(); err != nil {
		t.Fatal(err)
	}
	if out, err = shoalOn(agent, "leave", "--config", config); err != nil ||
		!strings.Contains(out, "has forgotten node joiner") {
		t.Fatal(err, out)
	}
	if nodes := s.k("get", "nodes", "-o", "name"); strings.Contains(nodes, "joiner") {
		t.Error(nodes)
	}
	if out, err = shoalOn(agent, "leave", "--config", config); err != nil || !strings.Contains(out, "is in no cluster") {
		t.Error(err, out)
	}
	refused("has been used by as many machines", token)
}

const deploymentOn = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: there, labels: {app: there}}, spec: {
  selector: {matchLabels: {app: there}}, template: {metadata: {labels: {app: there}}, spec: {
  nodeSelector: {kubernetes.io/hostname: NODE}, terminationGracePeriodSeconds: 0, containers: [{name: c, image: "%s"}]}}}}`
