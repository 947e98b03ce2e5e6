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

// writer prints a StatefulSet whose pod writes lines that begin with its UID into a
// directory of this machine, which all nodes have.
const writer = `apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata:
      labels: {app: db}
      annotations: {shoal.io/when-isolated: %s}
    spec:
      nodeSelector: {fencing: "yes"}
      terminationGracePeriodSeconds: 0
      containers:
      - name: c
        image: localhost/busybox:1
        env:
        - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}
        - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
        command: [sh, -c, 'while true; do echo "$POD $NODE" >>/data/log; sleep 0.02; done']
        volumeMounts: [{name: data, mountPath: /data}]
      volumes: [{name: data, hostPath: {path: %s}}]
`

// TestFencing: a node's agent is killed, so that only shoal-fence is left to stop its pod,
// which it does before another node writes. The node that is back has no fence.
func TestFencing(t *testing.T) {
	s := newSpace(t)
	dir := t.TempDir()
	agents := map[string]*harness.Agent{}
	for _, name := range []string{"node-f1", "node-f2"} {
		agent, err := cluster.Join(name)
		if err != nil {
			t.Fatal(err)
		}
		agents[name] = agent
		defer func() {
			if t.Failed() {
				t.Log(agent.Logs())
			}
			if err := agent.Stop(); err != nil {
				t.Error(err)
			}
			cluster.Must(t, "delete", "node", name)
		}()
		s.shows(name, "get", "nodes", "-o", "name")
		s.k("wait", "node/"+name, "--for=condition=Ready", "--timeout=30s")
		s.k("label", "node", name, "fencing=yes")
	}
	s.apply(fmt.Sprintf(writer, "maybe", dir))
	harness.Eventually(t, "an unknown policy is refused", func() (bool, string) {
		out := s.k("get", "events")
		return strings.Contains(out, `"maybe" is none of stay, stop, stop-if-replaced`), out
	})
	s.k("delete", "statefulset", "db")
	s.apply(fmt.Sprintf(writer, "stop", dir))
	log := filepath.Join(dir, "log")
	first := waitWriter(t, log, "")
	began := time.Now()
	if err := agents[first.node].Kill(); err != nil {
		t.Fatal(err)
	}
	second := waitWriter(t, log, first.pod)
	t.Logf("another node writes %v after the agent's death", time.Since(began).Round(100*time.Millisecond))
	if second.node == first.node {
		t.Errorf("both write on %s", first.node)
	}
	if err := agents[first.node].Start(); err != nil {
		t.Fatal(err)
	}
	s.field("node/"+first.node, `.status.conditions[?(@.type=="Ready")].status`, "True")
	harness.Eventually(t, "the fence is lifted", func() (bool, string) {
		out := cluster.Must(t, "-n", "kube-node-lease", "get", "lease", first.node, "-o", "yaml")
		return !strings.Contains(out, "fence.shoal.io/raised"), out
	})
	s.k("delete", "statefulset", "db")
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	begun := false
	for i, line := range lines {
		begun = begun || strings.HasPrefix(line, second.pod)
		if begun && !strings.HasPrefix(line, second.pod) {
			t.Fatalf("line %d of %d: %s writes after %s has begun", i+1, len(lines), line, second.pod)
		}
	}
}

type writes struct{ pod, node string }

// waitWriter waits until a pod other than one writes the last line.
func waitWriter(t *testing.T, log, other string) (w writes) {
	t.Helper()
	for end := time.Now().Add(90 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		b, err := os.ReadFile(log)
		lines := strings.Split(string(b), "\n")
		if len(lines) > 1 {
			if f := strings.Fields(lines[len(lines)-2]); len(f) == 2 && f[0] != other {
				return writes{f[0], f[1]}
			}
		}
		if time.Now().After(end) {
			t.Fatalf("nobody but %q has written: %v", other, err)
		}
	}
}
