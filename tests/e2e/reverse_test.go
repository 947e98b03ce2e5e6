package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/shoal-project/shoal/tests/harness"
)

// talks counts for ever, and reads what it is told.
const talks = `
apiVersion: v1
kind: Pod
metadata: {name: talks}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: localhost/busybox:1, stdin: true, command: [sh, -c,
      "i=0; (while true; do i=$((i+1)); echo line $i; sleep 0.2; done) & while read l; do echo got $l; done; wait"]}
`

// hears waits until a command's output has a text.
type hears struct {
	lines chan string
}

func listen(r io.Reader) *hears {
	h := &hears{make(chan string, 1000)}
	go func() {
		defer close(h.lines)
		for s := bufio.NewScanner(r); s.Scan(); {
			h.lines <- s.Text()
		}
	}()
	return h
}

// hear starts a program and listens to it; end kills it.
func hear(t *testing.T, cmd *exec.Cmd) (h *hears, end func()) {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return listen(out), func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

func (h *hears) until(t *testing.T, what, text string) {
	t.Helper()
	for late := time.After(time.Minute); ; {
		select {
		case line, more := <-h.lines:
			if strings.Contains(line, text) {
				return
			}
			if !more {
				t.Errorf("%s: ended before %q", what, text)
				return
			}
		case <-late:
			t.Errorf("%s: no %q", what, text)
			return
		}
	}
}

// sessions checks all that goes from the API server to a kubelet, for a pod of talks.
func (f *fabric) sessions(node string) {
	t := f.t
	t.Helper()
	followed, end := hear(t, f.KubectlCommand("logs", "-f", "talks", "--tail=1"))
	defer end()
	followed.until(t, "logs -f", "line")

	big := strings.Repeat("0123456789abcdef", 1<<16)
	if out, err := f.Kubectl(big, "exec", "-i", "talks", "--", "cat"); err != nil || out != big {
		t.Errorf("1 MB through exec: %v, %d bytes back", err, len(out))
	}
	kubectl := strings.Join(f.KubectlCommand().Args, " ")
	terminal := "stty rows 33 cols 77; " + kubectl + " exec -it talks -- sh -c 'sleep 0.3; stty size; tty'"
	text, err := exec.Command("script", "-qec", terminal, "/dev/null").CombinedOutput()
	if err != nil || !strings.Contains(string(text), "33 77") || !strings.Contains(string(text), "/dev/pts/") {
		t.Errorf("exec -it: %v %q", err, text)
	}
	spdy := f.KubectlCommand("exec", "-i", "talks", "--", "sh", "-c", "cat; exit 5")
	spdy.Env = append(spdy.Env, "KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false")
	spdy.Stdin = strings.NewReader("by spdy")
	if out, _ := spdy.Output(); string(out) != "by spdy" || spdy.ProcessState.ExitCode() != 5 {
		t.Errorf("exec over SPDY: %q, %v", out, spdy.ProcessState)
	}
	attach := f.KubectlCommand("attach", "-i", "talks")
	attach.Stdin = strings.NewReader("this\n")
	var attached bytes.Buffer
	attach.Stdout = &attached
	if err := attach.Start(); err != nil {
		t.Fatal(err)
	}
	followed.until(t, "attach", "got this")
	_ = attach.Process.Kill()
	_ = attach.Wait()

	forwarded, unforward := hear(t, f.KubectlCommand("port-forward", "pod/web-"+node, "18080:8080"))
	defer unforward()
	forwarded.until(t, "port-forward", "Forwarding")
	for range 3 {
		out, err := f.Run("curl", "-sS", "--max-time", "10", "http://127.0.0.1:18080")
		if err != nil || !strings.HasPrefix(out, "Hello from pod web-") {
			t.Errorf("through port-forward: %v %q", err, out)
		}
	}
	for path, want := range map[string]string{
		"healthz": "ok", "metrics": "kubelet_running_pods", "stats/summary": `"nodeName"`, "logs/": "<pre>",
	} {
		out, err := f.Kubectl("", "get", "--raw", "/api/v1/nodes/"+node+"/proxy/"+path)
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("proxy to %s: %v %.200q", path, err, out)
		}
	}
	harness.Eventually(t, "kubectl top shows the node and its pod", func() (bool, string) {
		nodes, err := f.Kubectl("", "top", "node", node)
		if err != nil || !strings.Contains(nodes, "%") {
			return false, fmt.Sprint(nodes, err)
		}
		pods, err := f.Kubectl("", "top", "pod", "talks")
		return err == nil && strings.Contains(pods, "Mi"), fmt.Sprint(pods, err)
	})
	followed.until(t, "logs -f after all that", "line")
}

// soon measures until the API server reaches the pod.
func (f *fabric) soon(what string) {
	f.t.Helper()
	begun := time.Now()
	harness.Eventually(f.t, "exec after "+what, func() (bool, string) {
		out, err := f.Kubectl("", "exec", "talks", "--", "echo", "there")
		return err == nil && out == "there\n", fmt.Sprint(out, err)
	})
	f.t.Logf("exec works %s after %s", time.Since(begun).Round(100*time.Millisecond), what)
}

// TestKubeletBehindTranslation: all that goes from the API server to the kubelet of a node
// which nobody can dial works, and again within seconds after its agent or the coordinator
// has ended. A node that can be dialled keeps no such connection.
func TestKubeletBehindTranslation(t *testing.T) { // NET-2
	t.Parallel() // with a cluster of its own
	f := newFabricOfHosts(t, "rev")
	node2 := f.join("node2", f.Host)
	node3 := f.join("node3", f.Hidden)
	f.MustWith(t, fmt.Sprintf(policyPods, "node3"), "apply", "-f", "-")
	f.MustWith(t, fmt.Sprintf(talks, "node3"), "apply", "-f", "-")
	f.Must(t, "wait", "--for=condition=Ready", "--timeout=60s", "pod/web-node3", "pod/talks")
	f.soon("the node came")
	f.sessions("node3")

	if err := node3.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := node3.Start(); err != nil {
		t.Fatal(err)
	}
	f.soon("a restart of the agent")
	if err := f.KillCoordinator(); err != nil {
		t.Fatal(err)
	}
	if err := f.UpCoordinator(); err != nil {
		t.Fatal(err)
	}
	f.soon("a restart of the coordinator")
	if n := strings.Count(node3.Logs(), "level=WARN msg=\"a coordinator does not reach"); n > 2 {
		t.Errorf("the log complains %d times", n)
	}
	if logs := node2.Logs(); strings.Contains(logs, "a coordinator sees this node behind address translation") {
		t.Error("node2 can be dialled, and keeps a connection")
	}
	f.sessions("node3")
}
