package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	agentconfig "github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/tests/harness"
)

// TestCopiedMachine: a machine that has a copy of a node's disk runs none of its pods while
// the node lives, and is the node once it does not.
func TestCopiedMachine(t *testing.T) {
	if _, err := os.Stat("/etc/machine-id"); err != nil {
		t.Skip("no /etc/machine-id to be told from another by")
	}
	s := newSpace(t)
	first, err := cluster.Host("original", harness.Machine)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // when neither machine is there to make it again
		if out, err := cluster.Kubectl("", "delete", "node", first.Name, "--ignore-not-found"); err != nil {
			t.Error(err, out)
		}
	})
	stop := func(a *harness.Agent) {
		t.Cleanup(func() {
			if err := a.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
	stop(first)
	second, err := cluster.Host("copy", harness.Machine, func(_ *harness.Agent, cfg *agentconfig.Config) {
		cfg.NodeName = first.Name
	})
	if err != nil {
		t.Fatal(err)
	}
	stop(second)
	if err := first.Identify(strings.Repeat("1", 32)); err != nil {
		t.Fatal(err)
	}
	if err := second.Identify(strings.Repeat("2", 32)); err != nil {
		t.Fatal(err)
	}
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the node is there", func() (bool, string) {
		out, err := cluster.Kubectl("", "get", "node", first.Name)
		return err == nil, out
	})
	s.k("wait", "--for=condition=Ready", "node/"+first.Name, "--timeout=60s")
	s.apply(`{apiVersion: v1, kind: Pod, metadata: {name: only}, spec: {nodeName: ` + first.Name +
		`, terminationGracePeriodSeconds: 0, containers: [{name: c, image: "localhost/busybox:1", command: [sleep, "99999"]}]}}`)
	s.k("wait", "--for=condition=Ready", "pod/only", "--timeout=60s")

	for _, name := range []string{"agent", "kubeconfig"} {
		from, to := filepath.Join(first.Dir, name), filepath.Join(second.Dir, name)
		if out, err := exec.Command("cp", "-aT", from, to).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	if err := second.Start(); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the copy refuses to be the node", func() (bool, string) {
		said := second.Logs()
		return strings.Contains(said, "another machine is this node, and lives"), said
	})
	if made, _ := filepath.Glob(filepath.Join(second.Dir, "run", "containers", "*", "pid")); len(made) > 0 {
		t.Errorf("the copy runs %v", made)
	}
	s.k("exec", "only", "--", "true")

	if err := first.Kill(); err != nil { // the machine with all its processes
		t.Fatal(err)
	}
	_ = second.Kill() // what has ended
	if err := second.Start(); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the pod runs on the copy", func() (bool, string) {
		out, err := second.Command("cat", filepath.Join(second.Dir, "agent.log")).CombinedOutput()
		made, _ := filepath.Glob(filepath.Join(second.Dir, "run", "containers", "*", "pid"))
		return err == nil && len(made) == 1, string(out)
	})
	s.k("wait", "--for=condition=Ready", "pod/only", "--timeout=60s")
	s.k("exec", "only", "--", "true")
}
