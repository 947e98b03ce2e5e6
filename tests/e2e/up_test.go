package e2e

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-project/shoal/tests/harness"
)

// TestUp: a second up is safe; then down leaves nothing but the data, which
// another up takes again; stale files and damaged ones do not keep it down.
func TestUp(t *testing.T) {
	t.Parallel() // with a cluster of its own
	c, err := harness.Prepare("up")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() {
			t.Log(c.Logs())
		}
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	}()
	up := func() {
		t.Helper()
		began := time.Now()
		if err := c.Up(); err != nil {
			t.Fatal(err)
		}
		t.Logf("up took %v", time.Since(began).Round(10*time.Millisecond))
	}
	refused := func(want string, run func() error) {
		t.Helper()
		began := time.Now()
		err := run()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want a refusal with %q, got: %v", want, err)
		}
		t.Logf("refused after %v: %.300v", time.Since(began).Round(10*time.Millisecond), err)
	}

	var taken net.Listener
	if err := harness.Inside(c.NetNS, func() (err error) {
		taken, err = net.Listen("tcp", ":6443")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	refused("6443", func() error { return c.Up() })
	taken.Close()
	if err := c.Down(); err != nil {
		t.Fatal(err)
	}

	up()
	supervisor, err := c.SupervisorPid()
	if err != nil {
		t.Fatal(err)
	}
	up()
	if again, err := c.SupervisorPid(); err != nil || again != supervisor {
		t.Errorf("a second up started another cluster: %v", err)
	}
	c.Must(t, "create", "configmap", "kept", "--from-literal=a=b")
	c.Must(t, "run", "kept", "--image=localhost/busybox:1", "--", "sleep", "9999")
	c.Must(t, "wait", "pod/kept", "--for=condition=Ready", "--timeout=60s")
	c.Must(t, "run", "once", "--image=localhost/busybox:1", "--restart=Never", "--", "true")
	c.Must(t, "wait", "pod/once", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
	const ended = "jsonpath={.status.phase} {.status.containerStatuses[0].restartCount} " +
		"{.status.containerStatuses[0].containerID} {.status.containerStatuses[0].state}"
	once := c.Must(t, "get", "pod", "once", "-o", ended)
	if out, err := c.Command("shoal", "status", "--data-dir", c.Dir).CombinedOutput(); err != nil ||
		!bytes.Contains(out, []byte("node1")) {
		t.Errorf("status: %v %s", err, out)
	}

	second := c.Command("shoal-agent", "--config", filepath.Join(c.Dir, "agent.yaml"))
	refused("another", func() error { return outputError(second) })

	began := time.Now()
	if err := c.Down(); err != nil {
		t.Fatal(err)
	}
	t.Logf("down took %v", time.Since(began).Round(10*time.Millisecond))
	for _, daemon := range []string{"coordinator", "agent"} {
		if pid, err := c.Pid(daemon); err == nil && syscall.Kill(pid, 0) == nil {
			t.Errorf("%s still runs", daemon)
		}
	}
	// What an unclean end leaves behind, and what a bad disk does.
	writeFile(t, filepath.Join(c.Dir, "shoal.pid"), "1999999\n")
	writeFile(t, filepath.Join(c.Dir, "run", "cri.sock"), "")
	pods, _ := filepath.Glob(filepath.Join(c.Dir, "agent", "checkpoint", "pods", "*"))
	for _, p := range pods {
		writeFile(t, p, "damaged")
	}
	for _, db := range databases(t, filepath.Join(c.Dir, "agent")) {
		writeFile(t, db, "damaged")
	}
	up()
	began = time.Now()
	c.Must(t, "get", "configmap", "kept")
	c.Must(t, "wait", "pod/kept", "--for=jsonpath={.status.containerStatuses[0].restartCount}=1", "--timeout=60s")
	c.Must(t, "wait", "pod/kept", "--for=condition=Ready", "--timeout=60s")
	t.Logf("the pod is Ready %v after up", time.Since(began).Round(10*time.Millisecond))
	const last = "jsonpath={.status.containerStatuses[0].lastState.terminated.reason}"
	if got := c.Must(t, "get", "pod", "kept", "-o", last); got != "ContainerStatusUnknown" {
		t.Errorf("last state of a pod that ran before: %q", got)
	}
	if got := c.Must(t, "get", "pod", "once", "-o", ended); got != once {
		t.Errorf("a pod that was complete is now %s, was %s", got, once)
	}
	if !strings.Contains(c.Logs(), "damaged") {
		t.Errorf("nothing is told about damaged files:\n%s", c.Logs())
	}
}

// databases are the image databases below a directory.
func databases(t *testing.T, dir string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".db") {
			found = append(found, path)
		}
		return err
	})
	if err != nil || len(found) == 0 {
		t.Fatalf("image databases: %v %v", found, err)
	}
	return found
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// outputError runs a command that shall fail; the error holds what it said.
func outputError(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	return &exec.Error{Name: cmd.Path, Err: errText(out)}
}

type errText []byte

func (e errText) Error() string { return string(e) }

// TestNotRoot: who is not root is told so.
func TestNotRoot(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command("setpriv", "--reuid=65534", "--regid=65534",
		"--clear-groups", filepath.Join(cluster.Bin, "shoal"), "up", "--data-dir", dir)
	if err := outputError(cmd); err == nil || !strings.Contains(err.Error(), "root") {
		t.Errorf("up as nobody: %v", err)
	}
}

// TestUmask: whatever umask(2) who starts a cluster has, users read what is in images, and
// nobody writes to what is the daemons'.
func TestUmask(t *testing.T) {
	t.Parallel() // with a cluster of its own
	c := ownCluster(t, "umask")
	c.Prefix = []string{"sh", "-c", `umask 077; exec "$@"`, "sh"}
	if err := c.Up(); err != nil {
		t.Fatal(err)
	}
	for _, daemon := range []string{"agent", "coordinator"} {
		pid, err := os.ReadFile(filepath.Join(c.Dir, "log", daemon+".pid"))
		if err != nil {
			t.Fatal(err)
		}
		status, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/status")
		if err != nil || !strings.Contains(string(status), "Umask:\t0022\n") {
			t.Errorf("%s: %v, %s", daemon, err, status)
		}
	}
	for name, hostUsers := range map[string]string{"user": "true", "mapped": "false"} {
		out, err := c.Kubectl(`{apiVersion: v1, kind: Pod, metadata: {name: `+name+`}, spec: {restartPolicy: Never,
  hostUsers: `+hostUsers+`, securityContext: {runAsUser: 1234, runAsNonRoot: true}, containers: [{name: c,
  image: "localhost/busybox:1", command: [sh, -c, "cat /etc/hosts /etc/resolv.conf > /e/copy"],
  volumeMounts: [{name: e, mountPath: /e}]}], volumes: [{name: e, emptyDir: {}}]}}`, "apply", "-f", "-")
		if err != nil {
			t.Fatal(err, out)
		}
	}
	for _, name := range []string{"user", "mapped"} {
		out, err := c.Kubectl("", "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/"+name, "--timeout=60s")
		if err != nil {
			t.Error(err, out)
		}
	}
}
