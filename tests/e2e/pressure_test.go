package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-project/shoal/tests/harness"
)

const pressed = `
{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: important}, value: 1000}
---
{apiVersion: v1, kind: Pod, metadata: {name: important}, spec: {priorityClassName: important,
  terminationGracePeriodSeconds: 0, volumes: [{name: v, emptyDir: {}}],
  containers: [{name: c, image: "localhost/busybox:1", volumeMounts: [{name: v, mountPath: /v}],
    command: [sh, -c, "dd if=/dev/zero of=/v/f bs=1M count=60; sleep 999"]}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: quiet}, spec: {terminationGracePeriodSeconds: 0,
  containers: [{name: c, image: "localhost/busybox:1", command: [sleep, "999"]}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: greedy}, spec: {terminationGracePeriodSeconds: 0,
  volumes: [{name: v, emptyDir: {}}],
  containers: [{name: c, image: "localhost/busybox:1", volumeMounts: [{name: v, mountPath: /v}],
    command: [sh, -c, "dd if=/dev/zero of=/v/f bs=1M count=150; sleep 999"]}]}}
`

// TestNodePressure: where the node's disk gets full, the agent ends the pod that takes
// most of what it did not ask for, and no other; the node says so and takes no more pods
// (NPE-1, NPE-18, NPE-23, NPE-28).
func TestNodePressure(t *testing.T) {
	t.Parallel() // with a cluster of its own
	c := ownCluster(t, "pressure")
	dir := filepath.Join(c.Dir, "small")
	smallDisk(t, c, dir, 300)
	if err := c.Up("--root-dir", filepath.Join(dir, "kubelet"), "--pod-logs-dir", filepath.Join(dir, "pod-logs"),
		"--eviction-hard", "nodefs.available=100Mi,imagefs.available=50Mi"); err != nil {
		t.Fatal(err)
	}
	c.MustWith(t, pressed, "apply", "-f", "-")
	harness.Eventually(t, "the greedy pod is evicted", func() (bool, string) {
		out, err := c.Kubectl("", "get", "pod", "greedy", "-o",
			"jsonpath={.status.phase} {.status.reason}: {.status.message}"+
				` {.status.conditions[?(@.type=="DisruptionTarget")].reason}`)
		return err == nil && strings.HasPrefix(out,
				"Failed Evicted: The node was low on resource: ephemeral-storage. "+
					"Threshold quantity: 100Mi, available: ") &&
				strings.HasSuffix(out, " TerminationByKubelet"),
			fmt.Sprint(out, err)
	})
	harness.Eventually(t, "the node says so", func() (bool, string) {
		out, err := c.Kubectl("", "get", "nodes", "-o",
			`jsonpath={.items[0].status.conditions[?(@.type=="DiskPressure")].status} `+
				`{.items[0].spec.taints[*].key}`)
		events, _ := c.Kubectl("", "get", "events", "--field-selector=reason=EvictionThresholdMet", "-o",
			"jsonpath={.items[*].message}")
		return err == nil && strings.Contains(out, "True node.kubernetes.io/disk-pressure") &&
			strings.Contains(events, "Attempting to reclaim ephemeral-storage"), fmt.Sprint(out, events, err)
	})
	node := c.Must(t, "get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
	c.MustWith(t, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: late}, spec: {nodeName: %s,
  containers: [{name: c, image: "localhost/busybox:1", command: [sleep, "999"]}]}}`, node), "apply", "-f", "-")
	harness.Eventually(t, "a pod that comes now is not taken", func() (bool, string) {
		out, err := c.Kubectl("", "get", "pod", "late", "-o", "jsonpath={.status.phase} {.status.reason}: {.status.message}")
		return err == nil && out == "Failed Evicted: Pod was rejected: The node had condition: [DiskPressure]. ",
			fmt.Sprint(out, err)
	})
	for _, pod := range []string{"important", "quiet"} {
		if out := c.Must(t, "get", "pod", pod, "-o",
			"jsonpath={.status.phase} {.status.containerStatuses[0].restartCount}"); out != "Running 0" {
			t.Errorf("%s is %s", pod, out)
		}
	}
}
