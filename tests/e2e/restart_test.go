package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-project/shoal/tests/harness"
)

// pids returns the start of each container of the namespace's pods as the
// kernel knows it: pod, container id and process. They stay the same as long
// as nothing restarts.
func pids(t *testing.T, ns string, container ...string) string {
	t.Helper()
	ids := cluster.Must(t, "-n", ns, "get", "pods", "-o", `jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}{"\n"}{end}`)
	var b strings.Builder
	for line := range strings.Lines(ids) {
		f := strings.Fields(line)
		if len(f) < 3 {
			t.Fatalf("pod without container: %q", line)
		}
		args := []string{"-n", ns, "exec", f[0]}
		for _, c := range container {
			args = append(args, "-c", c)
		}
		out, err := cluster.Kubectl("", append(args, "--", "cat", "/proc/1/stat")...)
		if err != nil {
			t.Fatal(err)
		}
		stat := strings.Fields(out)
		fmt.Fprintf(&b, "%s %s %s started %s\n", f[0], f[1], f[2], stat[21])
	}
	return b.String()
}

// counter is a pod that prints one number every 100 ms, so that a gap in its
// log shows.
const counter = `
apiVersion: v1
kind: Pod
metadata: {name: counter, labels: {app: counter}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, "i=0; while true; do echo line $i; i=$((i+1)); sleep 0.1; done"]
    readinessProbe: {exec: {command: ["true"]}, periodSeconds: 1}
    ports: [{containerPort: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: counter}
spec: {selector: {app: counter}, ports: [{port: 80}]}
`

// ending is a pod that ends when told, by files in a directory of the host.
const ending = `
apiVersion: v1
kind: Pod
metadata: {name: ends}
spec:
  restartPolicy: Never
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, "while [ ! -f /h/go ]; do sleep 0.05; done; touch /h/gone; exit 7"]
    volumeMounts: [{name: h, mountPath: /h}]
  volumes: [{name: h, hostPath: {path: %s}}]
`

// holdSupervisor keeps the supervisor from starting what ends until release.
func holdSupervisor(t *testing.T) (release func()) {
	t.Helper()
	pid, err := cluster.SupervisorPid()
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	release = func() { _ = syscall.Kill(pid, syscall.SIGCONT) }
	t.Cleanup(release)
	return release
}

// TestAgentRestartTouchesNothing: kill -9 of the agent leaves every process,
// the logs have no gap, readiness and endpoints do not flap, and a container
// that ended meanwhile has its true exit code.
func TestAgentRestartTouchesNothing(t *testing.T) {
	ns := namespace(t)
	cluster.MustWith(t, counter, "-n", ns, "apply", "-f", "-")
	cluster.Must(t, "-n", ns, "wait", "pod/counter", "--for=condition=Ready", "--timeout=60s")
	before := pids(t, ns)
	ends := t.TempDir()
	cluster.MustWith(t, fmt.Sprintf(ending, ends), "-n", ns, "apply", "-f", "-")
	cluster.Must(t, "-n", ns, "wait", "pod/ends", "--for=condition=Ready", "--timeout=60s")
	readySince := func() string {
		return cluster.Must(t, "-n", ns, "get", "pod", "counter", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")]}`)
	}
	slice := func() string {
		return cluster.Must(t, "-n", ns, "get", "endpointslices", "-l", "kubernetes.io/service-name=counter", "-o", "jsonpath={.items[0].endpoints[*].conditions.ready} {.items[0].metadata.resourceVersion}")
	}
	cluster.Settled(t, "agent")
	ready, endpoints := readySince(), slice()
	release := holdSupervisor(t)
	killed, err := cluster.Pid("agent")
	if err != nil {
		t.Fatal(err)
	}
	kill(t, []int{killed})
	if err := os.WriteFile(filepath.Join(ends, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the container ends without an agent", func() (bool, string) {
		_, err := os.Stat(filepath.Join(ends, "gone"))
		return err == nil, fmt.Sprint(err)
	})
	ended := time.Now()
	release()
	harness.Eventually(t, "exit code of the pod that ended", func() (bool, string) {
		code := cluster.Must(t, "-n", ns, "get", "pod", "ends", "-o", "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}")
		return code == "7", code
	})
	at := cluster.Must(t, "-n", ns, "get", "pod", "ends", "-o", "jsonpath={.status.containerStatuses[0].state.terminated.finishedAt}")
	if told, err := time.Parse(time.RFC3339, at); err != nil || told.Sub(ended).Abs() > 2*time.Second {
		t.Errorf("ended at %s, the status tells %s %v", ended, at, err)
	}
	cluster.Must(t, "-n", ns, "delete", "pod", "ends", "--now")
	if after := pids(t, ns); !strings.Contains(before, after) {
		t.Errorf("containers restarted:\nbefore %safter  %s", before, after)
	}
	if now := readySince(); now != ready {
		t.Errorf("readiness flapped: %s, then %s", ready, now)
	}
	if now := slice(); now != endpoints {
		t.Errorf("endpoints flapped: %s, then %s", endpoints, now)
	}
	gapless(t, cluster.Must(t, "-n", ns, "logs", "counter"))
}

func gapless(t *testing.T, log string) {
	t.Helper()
	n := 0
	for line := range strings.Lines(log) {
		if want := fmt.Sprintf("line %d\n", n); line != want {
			t.Fatalf("log has %q where %q belongs", line, want)
		}
		n++
	}
	if n < 10 {
		t.Errorf("only %d lines", n)
	}
}

// TestCoordinatorRestart: kill -9 of the coordinator loses no acknowledged
// write, and pods and Services go on meanwhile.
func TestCoordinatorRestart(t *testing.T) {
	ns := namespace(t)
	cluster.Must(t, "-n", ns, "create", "deployment", "hello", "--image=localhost/hello:1", "--replicas=2")
	cluster.Must(t, "-n", ns, "rollout", "status", "deployment/hello", "--timeout=60s")
	cluster.Must(t, "-n", ns, "expose", "deployment", "hello", "--port=80", "--target-port=8080")
	address := cluster.Must(t, "-n", ns, "get", "service", "hello", "-o", "jsonpath={.spec.clusterIP}")
	get := func() (string, error) { return cluster.Run("curl", "-sS", "--max-time", "2", "http://"+address) }
	answers(t, "service", get)
	cluster.Must(t, "-n", ns, "create", "configmap", "written", "--from-literal=a=b")
	cluster.Kill(t, "coordinator")
	harness.Eventually(t, "the API is back", func() (bool, string) {
		if out, err := get(); err != nil {
			t.Fatalf("the Service does not answer without a coordinator: %v %s", err, out)
		}
		out, err := cluster.Kubectl("", "-n", ns, "get", "configmap", "written", "-o", "jsonpath={.data.a}")
		return err == nil && out == "b", fmt.Sprint(out, err)
	})
	cluster.Must(t, "-n", ns, "scale", "deployment/hello", "--replicas=3")
	cluster.Must(t, "-n", ns, "rollout", "status", "deployment/hello", "--timeout=60s")
}
