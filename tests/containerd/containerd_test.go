package containerd

import (
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	agentconfig "github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/tests/harness"
	"github.com/shoal-project/shoal/tests/upstream"
)

const pause = "localhost/pause:1"

var cluster *harness.Cluster

func TestMain(m *testing.M) {
	var err error
	if cluster, err = harness.Start("ctrd"); err != nil {
		log.Fatal(err)
	}
	code := m.Run()
	if err := cluster.Stop(); err != nil {
		log.Print(err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// daemon is a containerd in the network namespace of a node.
type daemon struct {
	upstream.Containerd
	netns string
	cmd   *exec.Cmd
	log   *os.File
}

func start(t *testing.T, netns string) *daemon {
	t.Helper()
	cache := os.Getenv("CACHE")
	if cache == "" {
		cache = filepath.Join(cluster.Bin, "peer")
	}
	if err := upstream.BuildContainerd(t.Context(), cache); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "ctrd") // short: it holds sockets
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{netns: netns,
		Containerd: upstream.Containerd{Programs: cache, Bin: cluster.Bin, Dir: dir, Pause: pause}}
	if err := d.Write(); err != nil {
		t.Fatal(err)
	}
	if d.log, err = os.Create(filepath.Join(dir, "log")); err != nil {
		t.Fatal(err)
	}
	d.run(t)
	t.Cleanup(func() { d.end(t) })
	image := filepath.Join(dir, "pause.tar")
	pack := exec.Command(upstream.GoProgram(), "run", "../../hack/image", "-name", pause, "-out", image, "-entrypoint",
		"/testserver pause", filepath.Join(cluster.Bin, "testserver")+"=/testserver")
	if out, err := pack.CombinedOutput(); err != nil {
		t.Fatalf("pack the sandbox's image: %v %s", err, out)
	}
	archives, err := filepath.Glob(filepath.Join(cluster.Bin, "test-images", "*.tar"))
	if err != nil {
		t.Fatal(err)
	}
	for _, archive := range append(archives, image) {
		harness.Eventually(t, "import of "+archive, func() (bool, string) {
			out, err := d.inside(d.Import(archive)).CombinedOutput()
			return err == nil, string(out)
		})
	}
	return d
}

// inside is a command in the node's network.
func (d *daemon) inside(command []string) *exec.Cmd {
	return harness.Command(d.netns, command[0], command[1:]...)
}

func (d *daemon) run(t *testing.T) {
	t.Helper()
	d.cmd = d.inside(d.Command())
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

// stop ends containerd; shims and containers stay.
func (d *daemon) stop() {
	_ = d.cmd.Process.Signal(os.Interrupt)
	_ = d.cmd.Wait()
}

func (d *daemon) end(t *testing.T) {
	d.stop()
	if t.Failed() {
		text, _ := os.ReadFile(d.log.Name())
		t.Logf("containerd: %s", text[max(0, len(text)-4000):])
	}
	d.log.Close()
	if out, err := exec.Command("pgrep", "-af", "containerd-shim.*"+d.Dir).Output(); err == nil {
		t.Errorf("shims left: %s", out)
	}
	if err := os.RemoveAll(d.Dir); err != nil {
		t.Error(err)
	}
}

const pods = `
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  nodeName: %[1]s
  initContainers: [{name: first, image: "localhost/busybox:1", command: [sh, -c, "echo made > /w/index.html"], volumeMounts: [{name: w, mountPath: /w}], resources: {limits: {memory: 64Mi, cpu: 500m}}}]
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, "echo started; rm -f /w/sick; trap 'exit 0' TERM; httpd -p 8080 -h /w; while :; do sleep 0.1; done"]
    volumeMounts: [{name: w, mountPath: /w}]
    readinessProbe: {httpGet: {path: /index.html, port: 8080}, periodSeconds: 1}
    livenessProbe: {exec: {command: [test, "!", -e, /w/sick]}, periodSeconds: 1, failureThreshold: 1}
    resources: {limits: {memory: 64Mi, cpu: 500m}}
  volumes: [{name: w, emptyDir: {}}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: ends}
spec: {nodeName: %[1]s, restartPolicy: Never, containers: [{name: c, image: "localhost/busybox:1", command: [sh, -c, "exit 7"]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: missing}
spec: {nodeName: %[1]s, containers: [{name: c, image: "localhost/none:1", imagePullPolicy: Never}]}
`

// TestContainerd: pods run on a node whose containers are containerd's: init
// containers, volumes, probes and restarts, logs, exec, port forwarding,
// Services, exit codes; a restart of the agent or of containerd touches no
// container; deletion leaves nothing.
func TestContainerd(t *testing.T) {
	var runtime *daemon
	agent, err := cluster.Host("node2", func(a *harness.Agent, c *agentconfig.Config) {
		runtime = start(t, a.NetNS)
		c.ContainerRuntimeEndpoint = "unix://" + runtime.Socket()
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			out, _ := cluster.Kubectl("", "describe", "pods")
			t.Log(out, agent.Logs())
		}
		_, _ = cluster.Kubectl("", "delete", "pods", "--all", "--now", "--timeout=60s")
		if err := agent.Stop(); err != nil {
			t.Error(err)
		}
	}()
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	k := func(args ...string) string { t.Helper(); return cluster.Must(t, args...) }
	until := func(want string, args ...string) {
		t.Helper()
		harness.Eventually(t, strings.Join(args, " ")+" shows "+want, func() (bool, string) {
			out, err := cluster.Kubectl("", args...)
			return err == nil && strings.Contains(out, want), fmt.Sprint(out, err)
		})
	}
	until("node2", "get", "nodes", "-o", "name")
	k("wait", "node/node2", "--for=condition=Ready", "--timeout=60s")
	if v := k("get", "node", "node2", "-o",
		"jsonpath={.status.nodeInfo.containerRuntimeVersion}"); !strings.HasPrefix(v, "containerd://") {
		t.Errorf("runtime version %q", v)
	}
	cluster.MustWith(t, fmt.Sprintf(pods, "node2"), "apply", "-f", "-")
	k("wait", "pod/web", "--for=condition=Ready", "--timeout=60s")
	until("7", "get", "pod", "ends", "-o", "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}")
	until("ErrImageNeverPull", "get", "pod", "missing")
	until("started", "logs", "web")
	if out := k("exec", "web", "--", "cat", "/w/index.html"); out != "made\n" {
		t.Errorf("exec: %q", out)
	}
	if _, err := cluster.Kubectl("", "exec", "web", "--", "sh", "-c", "exit 3"); err == nil ||
		!strings.Contains(err.Error(), "exit code 3") {
		t.Errorf("exit code of exec: %v", err)
	}
	uid := k("get", "pod", "web", "-o", "jsonpath={.metadata.uid}")
	if list := groups(t, "pod"+uid); len(list) == 0 || !limited(list) {
		t.Errorf("no group of the pod has its limit of memory: %v", list)
	}
	address := k("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
	harness.Eventually(t, "the Service answers from the other node", func() (bool, string) {
		out, err := cluster.Run("curl", "-sS", "--max-time", "2", "http://"+address)
		return err == nil && out == "made\n", fmt.Sprint(out, err)
	})
	forward(t)

	id := func() string {
		return k("get", "pod", "web", "-o", "jsonpath={.status.containerStatuses[0].containerID}")
	}
	before := id()
	if err := agent.Kill(); err != nil {
		t.Fatal(err)
	}
	runtime.stop()
	runtime.run(t)
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "exec after a restart", func() (bool, string) {
		out, err := cluster.Kubectl("", "exec", "web", "--", "cat", "/w/index.html")
		return err == nil && out == "made\n", fmt.Sprint(out, err)
	})
	if after := id(); after != before {
		t.Errorf("the restart touched the container: %s then %s", before, after)
	}
	k("exec", "web", "--", "touch", "/w/sick")
	until("1", "get", "pod", "web", "-o", "jsonpath={.status.containerStatuses[0].restartCount}")
	until("Liveness probe failed", "get", "events")
	k("wait", "pod/web", "--for=condition=Ready", "--timeout=60s")

	k("delete", "pods", "--all", "--timeout=60s")
	harness.Eventually(t, "nothing is left", func() (bool, string) {
		out, err := runtime.inside(runtime.Containers()).Output()
		return err == nil && strings.TrimSpace(string(out)) == "", string(out)
	})
	harness.Eventually(t, "no group of a pod is left", func() (bool, string) {
		left := groups(t, "pod*")
		return len(left) == 0, strings.Join(left, " ")
	})
}

// groups are those of the node's pods by a pattern of their names, of cgroup v1 and v2.
func groups(t *testing.T, name string) (all []string) {
	t.Helper()
	for _, hierarchy := range []string{"", "*"} {
		for _, class := range []string{"", "*"} {
			top := filepath.Join("/sys/fs/cgroup", hierarchy, cluster.Name+"-node2")
			list, err := filepath.Glob(filepath.Join(top, "kubepods", class, name))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, list...)
		}
	}
	return all
}

// limited tells whether one of groups has the limit of memory of the pod web.
func limited(groups []string) bool {
	for _, dir := range groups {
		for _, file := range []string{"memory.max", "memory.limit_in_bytes"} {
			text, err := os.ReadFile(filepath.Join(dir, file))
			if err == nil && strings.TrimSpace(string(text)) == "67108864" {
				return true
			}
		}
	}
	return false
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
		return err == nil && out == "made\n", fmt.Sprint(out, err)
	})
}
