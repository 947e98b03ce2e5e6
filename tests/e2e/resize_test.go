package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoal-project/shoal/tests/harness"
)

const resizable = `
apiVersion: v1
kind: Pod
metadata: {name: live}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sleep, "9999"]
    resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 200m, memory: 64Mi}}
    resizePolicy: [{resourceName: memory, restartPolicy: NotRequired}]
---
apiVersion: v1
kind: Pod
metadata: {name: again}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sleep, "9999"]
    resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 200m, memory: 64Mi}}
    resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]
---
apiVersion: v1
kind: Pod
metadata: {name: sysctl}
spec:
  nodeName: NODE
  securityContext: {sysctls: [{name: kernel.shmmax, value: "65536"}]}
  containers: [{name: c, image: "localhost/busybox:1", command: [sleep, "9999"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: hooked}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: "localhost/busybox:1", command: [sleep, "9999"], lifecycle: {postStart: {exec: {command: [sh, -c, "until [ -f /go ]; do sleep 0.1; done"]}}}}
`

// TestResize: limits of running containers change in place, or by a restart
// where the policy says so, or wait for room (KEP-1287). Beside that: what the
// node refuses and what it shows only after a hook.
func TestResize(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	node := cluster.Must(t, "get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
	s.apply(strings.ReplaceAll(resizable, "NODE", node))
	s.ready("live")
	s.ready("again")
	for _, p := range []string{"live", "again"} {
		s.k("patch", "pod", p, "--subresource", "resize", "-p",
			`{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"150m","memory":"96Mi"},"limits":{"cpu":"300m","memory":"96Mi"}}}]}}`)
	}
	s.field("pod/live", ".status.containerStatuses[0].resources.limits.memory", "96Mi")
	s.field("pod/live", ".status.containerStatuses[0].restartCount", "0")
	s.field("pod/live", ".status.containerStatuses[0].allocatedResources.cpu", "150m")
	uid := s.k("get", "pod", "live", "-o", "jsonpath={.metadata.uid}")
	limit := "100663296"
	harness.Eventually(t, "both cgroups have the new limit", func() (bool, string) { return cgroupLimits(uid, limit) })
	s.field("pod/again", ".status.containerStatuses[0].restartCount", "1")
	s.field("pod/again", ".status.containerStatuses[0].resources.limits.memory", "96Mi")
	s.field("pod/again", `.status.conditions[?(@.type=="PodResizeInProgress")].status`, "")

	grow := func(cpu string) []string {
		return []string{"patch", "pod", "live", "--subresource", "resize", "-p", fmt.Sprintf(
			`{"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":%q},"limits":{"cpu":"900"}}}]}}`, cpu)}
	}
	s.refused("node didn't have enough allocatable resources", grow("800")...)
	all := cluster.Must(t, "get", "node", node, "-o", "jsonpath={.status.allocatable.cpu}")
	s.k(grow(all)...) // which the others have some of
	s.field("pod/live", `.status.conditions[?(@.type=="PodResizePending")].reason`, "Deferred")
	s.field("pod/live", ".status.containerStatuses[0].resources.limits.cpu", "300m")

	s.field("pod/sysctl", ".status.reason", "SysctlForbidden")
	s.field("pod/sysctl", ".status.message", `Pod was rejected: forbidden sysctl: "kernel.shmmax" not allowlisted`)

	time.Sleep(time.Second) // the hook waits: long enough to be shown too early
	s.field("pod/hooked", ".status.containerStatuses[0].state.waiting.reason", "ContainerCreating")
	s.exec("hooked", "touch", "/go")
	s.ready("hooked")
}

// TestExtendedResources: what a client advertises on a node becomes allocatable
// with the agent's next word, survives it, and goes with its owner's.
func TestExtendedResources(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	node := "node/" + cluster.Must(t, "get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
	s.k("patch", node, "--subresource", "status", "--type", "json", "-p", `[{"op":"add","path":"/status/capacity/example.com~1foo","value":"5"}]`)
	s.field(node, `.status.allocatable.example\.com/foo`, "5")
	s.field(node, `.status.capacity.example\.com/foo`, "5")
	s.k("patch", node, "--subresource", "status", "--type", "json", "-p", `[{"op":"remove","path":"/status/capacity/example.com~1foo"}]`)
	s.field(node, `.status.allocatable.example\.com/foo`, "")
}

// cgroupLimits tells whether the memory limit of the pod and of its container
// is as wanted, on cgroup v1 or v2.
func cgroupLimits(uid, want string) (bool, string) {
	n, seen := 0, ""
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.Contains(path, "/pod"+uid) || d.Name() != "memory.limit_in_bytes" &&
			d.Name() != "memory.max" {
			return nil
		}
		data, _ := os.ReadFile(path)
		seen += path + "=" + string(data)
		if strings.TrimSpace(string(data)) == want {
			n++
		}
		return nil
	})
	return n == 2, seen
}
