package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-project/shoal/tests/harness"
)

// writer prints a StatefulSet whose pod writes lines into a directory of this machine,
// which all nodes have, so that nobody writes later: which run of the container, and on
// which node. The file's order is that of the writes.
const writer = `apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata:
      labels: {app: db}
      annotations: {shoal.io/when-isolated: %s, shoal.io/writes-end-with-pod: "true"}
    spec:
      nodeSelector: {fencing: "yes"}
      terminationGracePeriodSeconds: 0
      containers:
      - name: c
        image: localhost/busybox:1
        env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
        command: [sh, -c, 'read i </proc/sys/kernel/random/uuid; while true; do echo "$i $NODE" >>/data/log; sleep 0.02; done']
        volumeMounts: [{name: data, mountPath: /data}]
      volumes: [{name: data, hostPath: {path: %s}}]
`

// isolation is what happens to the writer's node, and how that is undone.
type isolation struct {
	name       string
	begin, end func(*harness.Agent) error
}

// isolations leave the pod's processes alone: somebody on the node has to stop them.
var isolations = []isolation{
	{"agent killed", (*harness.Agent).Kill, (*harness.Agent).Start},
	{"network cut", (*harness.Agent).Cut, (*harness.Agent).Plug},
	{"agent hangs", signalled(syscall.SIGSTOP), signalled(syscall.SIGCONT)},
	{"network cut, agent and keeper killed, agent started", func(a *harness.Agent) error {
		if err := a.Cut(); err != nil {
			return err
		}
		if err := killKeeper(a); err != nil {
			return err
		}
		if err := a.Kill(); err != nil {
			return err
		}
		return a.Start()
	}, (*harness.Agent).Plug},
	{"network cut, keeper killed", func(a *harness.Agent) error {
		if err := a.Cut(); err != nil {
			return err
		}
		return killKeeper(a)
	}, (*harness.Agent).Plug},
}

func signalled(s syscall.Signal) func(*harness.Agent) error {
	return func(a *harness.Agent) error { return a.Signal(s) }
}

func killKeeper(a *harness.Agent) error {
	locks, err := filepath.Glob(filepath.Join(a.Dir, "run", "fence", "*", "lock"))
	if err != nil || len(locks) != 1 {
		return fmt.Errorf("keepers %v, %w", locks, err)
	}
	b, err := os.ReadFile(locks[0])
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(string(b))
	if err != nil {
		return err
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}

// TestFencing: a node's agent is killed, so that only shoal-fence is left to stop its pod,
// which it does before another node writes. The node that is back has no fence. With
// SHOAL_FENCING_CUTS=N there are N such faults of several kinds.
func TestFencing(t *testing.T) {
	cuts := 1
	if n := os.Getenv("SHOAL_FENCING_CUTS"); n != "" {
		var err error
		if cuts, err = strconv.Atoi(n); err != nil {
			t.Fatal(err)
		}
	}
	s := newSpace(t)
	dir := t.TempDir()
	agents := map[string]*harness.Agent{}
	for _, name := range []string{"node-f1", "node-f2"} {
		agent, err := cluster.Join(name)
		if err != nil {
			t.Fatal(err)
		}
		agents[name] = agent
		defer leave(t, agent, name)
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
	var took []time.Duration
	for i := range cuts {
		fault := isolations[i%len(isolations)]
		first := waitWriter(t, log, func(writes) bool { return true })
		began := time.Now()
		if err := fault.begin(agents[first.node]); err != nil {
			t.Fatal(err)
		}
		waitWriter(t, log, func(w writes) bool { return w.node != first.node })
		took = append(took, time.Since(began))
		t.Logf("%s: another node writes after %v", fault.name, took[i].Round(100*time.Millisecond))
		if err := fault.end(agents[first.node]); err != nil {
			t.Fatal(err)
		}
		s.field("node/"+first.node, `.status.conditions[?(@.type=="Ready")].status`, "True")
		harness.Eventually(t, "the fence is lifted", func() (bool, string) {
			out := cluster.Must(t, "-n", "kube-node-lease", "get", "lease", first.node, "-o", "yaml")
			return !strings.Contains(out, "fence.shoal.io/raised"), out
		})
		checkWriters(t, log)
	}
	s.k("delete", "statefulset", "db")
	slices.Sort(took)
	t.Logf("%d faults, %d runs: half within %v, all within %v",
		cuts, checkWriters(t, log), took[len(took)/2], took[len(took)-1])
}

// checkWriters counts the runs that wrote. One that writes after another has begun is an
// error: both ran.
func checkWriters(t *testing.T, log string) int {
	t.Helper()
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	last := ""
	for i, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		id, _, _ := strings.Cut(line, " ")
		if id == last {
			continue
		}
		if seen[id] {
			t.Fatalf("line %d: %s writes after %s has begun", i+1, line, last)
		}
		seen[id], last = true, id
	}
	return len(seen)
}

type writes struct{ run, node string }

// waitWriter waits until the last line is as wanted.
func waitWriter(t *testing.T, log string, wanted func(writes) bool) (w writes) {
	t.Helper()
	for end := time.Now().Add(90 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		b, err := os.ReadFile(log)
		lines := strings.Split(string(b), "\n")
		if len(lines) > 1 {
			if f := strings.Fields(lines[len(lines)-2]); len(f) == 2 && wanted(writes{f[0], f[1]}) {
				return writes{f[0], f[1]}
			}
		}
		if time.Now().After(end) {
			t.Fatalf("nobody writes: %v", err)
		}
	}
}
