package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/shoal-project/shoal/tests/harness"
)

const hollowPods = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 12
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      nodeSelector: {shoal-project.io/hollow: "true"}
      initContainers: [{name: i, image: any/image:1}]
      containers: [{name: c, image: any/image:2}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: short}
spec:
  template:
    metadata: {annotations: {hollow.shoal-project.io/run-for: 200ms}}
    spec:
      restartPolicy: Never
      nodeSelector: {shoal-project.io/hollow: "true"}
      containers: [{name: c, image: any/image:1}]
`

// One process plays nodes that register, run pods and give them back.
func TestHollowNodes(t *testing.T) {
	const nodes = 5
	ns := namespace(t)
	var out strings.Builder
	c := cluster.Command("shoal-agent", "--hollow", fmt.Sprint(nodes), "--kubeconfig", cluster.Kubeconfig(),
		"--hollow-ramp", "0s", "--hollow-services", "1",
		"--hollow-gossip", "1", "--gossip-key-file", filepath.Join(cluster.Dir, "coordinator", "pki", "gossip.key"),
		"--join", cluster.Address+":7947")
	c.Stdout, c.Stderr = &out, &out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		if err := c.Wait(); err != nil || t.Failed() {
			t.Errorf("hollow nodes: %v\n%s", err, out.String())
		}
		cluster.Must(t, "delete", "nodes", "-l", "shoal-project.io/hollow=true")
	})
	get := func(kind, path string) string {
		v, err := cluster.Kubectl("", "-n", ns, "get", kind, "-o", "jsonpath="+path)
		if err != nil {
			return err.Error()
		}
		return v
	}
	harness.Eventually(t, "the nodes are Ready", func() (bool, string) {
		v, err := cluster.Kubectl("", "get", "nodes", "-l", "shoal-project.io/hollow", "-o", `jsonpath={range .items[*]}{.status.conditions[?(@.type=="Ready")].status} {end}`)
		return err == nil && strings.Count(v, "True") == nodes, v
	})
	harness.Eventually(t, "the first is given its place in the gossip", func() (bool, string) {
		v, err := cluster.Kubectl("", "get", "node", "hollow-0", "-o", `jsonpath={.metadata.annotations.shoal-project\.io/gossip-grant}`)
		return err == nil && v != "", fmt.Sprint(v, err)
	})
	cluster.MustWith(t, hollowPods, "-n", ns, "apply", "-f", "-")
	harness.Eventually(t, "the pods are ready and the job is done", func() (bool, string) {
		v := get("deployment/web", "{.status.readyReplicas}") + " " + get("job/short", "{.status.succeeded}")
		return v == "12 1", v
	})
	if ips := strings.Fields(get("pods", "{.items[*].status.podIP}")); len(ips) < 12 {
		t.Errorf("addresses: %v", ips)
	}
	cluster.Must(t, "-n", ns, "delete", "deployment", "web")
	harness.Eventually(t, "the pods are gone", func() (bool, string) {
		v := get("pods", `{.items[*].metadata.name}`)
		return !strings.Contains(v, "web"), v
	})
}
