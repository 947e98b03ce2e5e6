package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	agentconfig "github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/tests/harness"

	"k8s.io/apimachinery/pkg/api/resource"
)

const givenManifest = `
apiVersion: v1
kind: Pod
metadata: {uid: 6fa0c5a4-given, name: given, namespace: %s}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sleep, "9999"]
    env: [{name: TURN, value: "%s"}]
    volumeMounts: [{name: %s, mountPath: /mem}]
  volumes: [{name: %s, emptyDir: {medium: Memory}}]
`

// TestStaticGivenUID: the pod of a manifest has the UID that it gives, and sees Services; its
// emptyDir in memory is as large as the node's allocatable memory. A changed manifest of the same
// UID makes all of it anew.
func TestStaticGivenUID(t *testing.T) {
	s := newSpace(t)
	s.k("create", "service", "clusterip", "web", "--tcp=80:80")
	manifests := t.TempDir()
	agent, err := cluster.Host("node2", func(_ *harness.Agent, cfg *agentconfig.Config) { cfg.StaticPodPath = manifests })
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	defer leave(t, agent, "node2")
	s.shows("node2", "get", "nodes", "-o", "name")
	s.k("wait", "node/node2", "--for=condition=Ready", "--timeout=30s")
	write := func(turn, volume string) {
		t.Helper()
		text := fmt.Sprintf(givenManifest, s.ns, turn, volume, volume)
		if err := os.WriteFile(filepath.Join(manifests, "given.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	runs := func(turn, volume string) {
		t.Helper()
		harness.Eventually(t, "the pod of turn "+turn+" runs", func() (bool, string) {
			out, err := cluster.Kubectl("", "-n", s.ns, "exec", "given-node2", "--", "env")
			return err == nil && strings.Contains(out, "TURN="+turn+"\n"), fmt.Sprint(out, err)
		})
		s.field("pod/given-node2", ".spec.volumes[0].name", volume)
		s.field("pod/given-node2", ".status.phase", "Running")
		if _, err := os.Stat(filepath.Join(agent.Dir, "kubelet", "pods", "6fa0c5a4-given")); err != nil {
			t.Errorf("the pod has another UID: %v", err)
		}
	}
	write("one", "memory")
	runs("one", "memory")
	if out := s.exec("given-node2", "env"); !strings.Contains(out, "WEB_SERVICE_HOST=") {
		t.Errorf("the pod sees no Services: %s", out)
	}
	allocatable := resource.MustParse(s.k("get", "node", "node2", "-o", "jsonpath={.status.allocatable.memory}"))
	fields := strings.Fields(strings.Split(s.exec("given-node2", "df", "-kP", "/mem"), "\n")[1])
	if kib, err := strconv.ParseInt(fields[1], 10, 64); err != nil || kib != allocatable.Value()>>10 {
		t.Errorf("the emptyDir has %d KiB, and the node %d: %v", kib, allocatable.Value()>>10, err)
	}
	s.exec("given-node2", "touch", "/mem/old")
	write("two", "other")
	runs("two", "other")
	if out := s.exec("given-node2", "ls", "/mem"); strings.TrimSpace(out) != "" {
		t.Errorf("the new volume has %s", out)
	}
	if err := os.Remove(filepath.Join(manifests, "given.yaml")); err != nil {
		t.Fatal(err)
	}
	s.until("", "get", "pod", "given-node2", "--ignore-not-found", "-o", "name")
}
