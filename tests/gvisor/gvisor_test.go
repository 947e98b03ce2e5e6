package gvisor

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-project/shoal/tests/harness"
)

var cluster *harness.Cluster

func TestMain(m *testing.M) { os.Exit(run(m)) }

// run skips everything where the program is not built.
func run(m *testing.M) int {
	runsc, err := filepath.Abs("../../bin/runsc")
	if err == nil {
		_, err = os.Stat(runsc)
	}
	if err != nil {
		log.Print("gVisor's runsc is not here: `make gvisor` builds it and runs this")
		return 0
	}
	if cluster, err = harness.Start("gv", "--runtime-handlers",
		"gvisor="+runsc+" --network=host"); err != nil {
		log.Print(err)
		return 1
	}
	code := m.Run()
	if code != 0 {
		log.Print(cluster.Logs())
	}
	if err := cluster.Stop(); err != nil {
		log.Print(err)
		code = max(code, 1)
	}
	return code
}

const class = `
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: %[1]s}
handler: %[1]s
---
`

const pods = `
apiVersion: v1
kind: ConfigMap
metadata: {name: page}
data: {index.html: from a config map}
---
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  runtimeClassName: gvisor
  terminationGracePeriodSeconds: 20
  initContainers: [{name: first, image: "localhost/busybox:1", command: [sh, -c, "cp /page/index.html /w/"], volumeMounts: [{name: w, mountPath: /w}, {name: page, mountPath: /page}]}]
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, "cat /proc/version; rm -f /w/sick; trap 'echo bye; exit 0' TERM; httpd -p 8080 -h /w; while :; do sleep 0.1; done"]
    volumeMounts: [{name: w, mountPath: /w}]
    readinessProbe: {httpGet: {path: /index.html, port: 8080}, periodSeconds: 1}
    livenessProbe: {exec: {command: [test, "!", -e, /w/sick]}, periodSeconds: 1, failureThreshold: 1, timeoutSeconds: 5}
    resources: {limits: {memory: 256Mi, cpu: 500m}}
  - name: beside
    image: localhost/busybox:1
    command: [sleep, "9999"]
  volumes: [{name: w, emptyDir: {}}, {name: page, configMap: {name: page}}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: ends}
spec: {runtimeClassName: gvisor, restartPolicy: Never, containers: [{name: c, image: "localhost/busybox:1", command: [sh, -c, "echo last >/dev/termination-log; exit 7"]}]}
`

func until(t *testing.T, want string, args ...string) {
	t.Helper()
	harness.Eventually(t, strings.Join(args, " ")+" shows "+want, func() (bool, string) {
		out, err := cluster.Kubectl("", args...)
		return err == nil && strings.Contains(out, want), fmt.Sprint(out, err)
	})
}

func remove(t *testing.T) {
	if t.Failed() {
		out, _ := cluster.Kubectl("", "describe", "pods")
		t.Log(out)
	}
	_, _ = cluster.Kubectl("", "delete", "pods", "--all", "--now", "--timeout=60s")
}

// TestPods: init and other containers, volumes, probes, restarts, logs, exec, port
// forwarding, Services by address and name, statistics, exit codes, a restart of the agent
// and the end of a pod.
func TestPods(t *testing.T) {
	defer remove(t)
	k := func(args ...string) string { t.Helper(); return cluster.Must(t, args...) }
	cluster.MustWith(t, fmt.Sprintf(class, "gvisor")+pods, "apply", "-f", "-")
	k("wait", "pod/web", "--for=condition=Ready", "--timeout=60s")
	until(t, "7", "get", "pod", "ends", "-o", "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}")
	until(t, "last", "get", "pod", "ends", "-o", "jsonpath={.status.containerStatuses[0].state.terminated.message}")
	until(t, "gvisor", "logs", "web", "-c", "c")
	if out := k("exec", "web", "-c", "c", "--", "cat", "/w/index.html"); out != "from a config map" {
		t.Errorf("exec: %q", out)
	}
	if out := k("exec", "web", "-c", "c", "--", "hostname"); out != "web\n" {
		t.Errorf("host name %q", out)
	}
	if _, err := cluster.Kubectl("", "exec", "web", "-c", "c", "--", "sh", "-c", "exit 3"); err == nil ||
		!strings.Contains(err.Error(), "exit code 3") {
		t.Errorf("exit code of exec: %v", err)
	}
	kubectl := strings.Join(cluster.KubectlCommand().Args, " ")
	session := "stty rows 33 cols 77; " + kubectl + " exec -it web -c c -- sh -c 'sleep 0.3; stty size'"
	out, err := exec.Command("script", "-qec", session, "/dev/null").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "33 77") {
		t.Errorf("terminal: %v %q", err, out)
	}
	answers(t)
	for _, url := range []string{"http://127.0.0.1:8080/index.html", "http://web.default.svc.cluster.local/index.html"} {
		if out := k("exec", "web", "-c", "beside", "--", "wget", "-qO-", url); out != "from a config map" {
			t.Errorf("%s from the container beside it: %q", url, out)
		}
	}
	forward(t)
	measured(t)
	id := func() string {
		return k("get", "pod", "web", "-o", "jsonpath={.status.containerStatuses[*].containerID}")
	}
	before := id()
	cluster.Kill(t, "agent")
	cluster.Settled(t, "agent")
	until(t, "from a config map", "exec", "web", "-c", "c", "--", "cat", "/w/index.html")
	if after := id(); after != before {
		t.Errorf("the restart touched the containers: %s then %s", before, after)
	}
	k("exec", "web", "-c", "c", "--", "touch", "/w/sick")
	until(t, "1", "get", "pod", "web", "-o", `jsonpath={.status.containerStatuses[?(@.name=="c")].restartCount}`)
	until(t, "bye", "logs", "web", "-c", "c", "--previous")
	k("wait", "pod/web", "--for=condition=Ready", "--timeout=60s")
	k("delete", "pod", "web", "--timeout=60s", "--grace-period=5")
}

// answers gets the page through the Service.
func answers(t *testing.T) {
	t.Helper()
	address := cluster.Must(t, "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
	harness.Eventually(t, "the Service answers", func() (bool, string) {
		out, err := cluster.Run("curl", "-sS", "--max-time", "2", "http://"+address+"/index.html")
		return err == nil && out == "from a config map", fmt.Sprint(out, err)
	})
}

// forward gets the page by kubectl port-forward.
func forward(t *testing.T) {
	t.Helper()
	cmd := cluster.KubectlCommand("port-forward", "pod/web", "18080:8080")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	harness.Eventually(t, "port forwarding", func() (bool, string) {
		out, err := cluster.Run("curl", "-sS", "--max-time", "2", "http://127.0.0.1:18080/index.html")
		return err == nil && out == "from a config map", fmt.Sprint(out, err)
	})
}

// measured reads what the pod's containers take.
func measured(t *testing.T) {
	t.Helper()
	harness.Eventually(t, "statistics of the pod", func() (bool, string) {
		out, err := cluster.Kubectl("", "get", "--raw", "/api/v1/nodes/node1/proxy/stats/summary")
		if err != nil {
			return false, err.Error()
		}
		var summary struct {
			Pods []struct {
				PodRef     struct{ Name string }
				Network    struct{ RxBytes int }
				Containers []struct {
					Name   string
					CPU    struct{ UsageCoreNanoSeconds int }
					Memory struct{ WorkingSetBytes int }
				}
			}
		}
		if err := json.Unmarshal([]byte(out), &summary); err != nil {
			return false, err.Error()
		}
		for _, p := range summary.Pods {
			if p.PodRef.Name != "web" || len(p.Containers) != 2 || p.Network.RxBytes == 0 {
				continue
			}
			c := p.Containers[0]
			return c.CPU.UsageCoreNanoSeconds > 0 && c.Memory.WorkingSetBytes > 1<<20, out
		}
		return false, out
	})
}
