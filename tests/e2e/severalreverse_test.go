package e2e

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-project/shoal/tests/harness"
)

const hiddenWebhook = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: hidden}
webhooks:
- name: test.example.com
  clientConfig: {caBundle: %s, service: {namespace: default, name: webhook, path: /mutate}}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: default}}
  sideEffects: None
  timeoutSeconds: 5
  failurePolicy: Fail
  admissionReviewVersions: [v1]
`

// serversOn starts a webhook and an API of its own on a node.
func (f *fabric) serversOn(node string) {
	f.t.Helper()
	front, err := os.ReadFile(filepath.Join(f.Dir, "coordinator", "pki", "front-proxy-ca.crt"))
	if err != nil {
		f.t.Fatal(err)
	}
	ca, caPEM := authority(f.t)
	for _, mode := range []string{"webhook", "api"} {
		f.MustWith(f.t, securedBy(f.t, ca, mode, "default", node, front), "apply", "-f", "-")
	}
	f.Must(f.t, "wait", "--for=condition=Ready", "--timeout=60s", "pod/webhook", "pod/api")
	bundle := base64.StdEncoding.EncodeToString(caPEM)
	f.MustWith(f.t, fmt.Sprintf(hiddenWebhook, bundle), "apply", "-f", "-")
	f.MustWith(f.t, fmt.Sprintf(fishes, "default", bundle), "apply", "-f", "-")
}

// through checks that one coordinator reaches a node which nobody can dial, and what runs
// there: all that the API server asks kubelets and pods.
func (f *fabric) through(coordinator, address, node, after string) {
	t := f.t
	t.Helper()
	begun := time.Now()
	kubectl := func(args ...string) (string, error) {
		at := []string{"--server=https://" + address + ":6443", "--request-timeout=20s"}
		return f.Kubectl("", append(at, args...)...)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"exec", "talks", "--", "echo", "there"}, "there"},
		{[]string{"logs", "talks", "--tail=3"}, "line"},
		{[]string{"get", "--raw", "/api/v1/nodes/" + node + "/proxy/metrics"}, "kubelet_running_pods"},
		{[]string{"get", "--raw", "/api/v1/nodes/" + node + "/proxy/stats/summary"}, `"nodeName"`},
		{[]string{"get", "--raw", "/api/v1/namespaces/default/pods/web-" + node + ":8080/proxy/"}, "Hello from pod web-"},
		{[]string{"get", "--raw", "/api/v1/namespaces/default/services/web-" + node + ":80/proxy/"}, "Hello from pod web-"},
		{[]string{"top", "pod", "talks"}, "Mi"},
		{[]string{"create", "configmap", "asked", "--dry-run=server", "-o", "jsonpath={.metadata.labels.seen}"}, "yes"},
		{[]string{"get", "--raw", "/apis/fish.example.com/v1/namespaces/default/fishes"}, "tuna"},
	} {
		harness.Eventually(t, fmt.Sprintf("%s after %s: kubectl %s", coordinator, after, strings.Join(c.args, " ")),
			func() (bool, string) {
				out, err := kubectl(c.args...)
				return err == nil && strings.Contains(out, c.want), fmt.Sprintf("%.300s %v", out, err)
			})
	}
	forwarded, end := hear(t, f.KubectlCommand("--server=https://"+address+":6443", "port-forward", "pod/web-"+node, ":8080"))
	defer end()
	port := ""
	for line := range forwarded.lines {
		if _, rest, ok := strings.Cut(line, "127.0.0.1:"); ok {
			port, _, _ = strings.Cut(rest, " ")
			break
		}
	}
	out, err := f.Run("curl", "-sS", "--max-time", "10", "http://127.0.0.1:"+port)
	if err != nil || !strings.HasPrefix(out, "Hello from pod web-") {
		t.Errorf("%s after %s: through port-forward: %v %q", coordinator, after, err, out)
	}
	t.Logf("%s after %s: all answered within %s", coordinator, after, time.Since(begun).Round(100*time.Millisecond))
}

// TestKubeletOfSeveralCoordinators: each of three coordinators reaches a node which none can
// dial, by a connection of its own: when another one is killed, what goes through the others
// goes on; all of them do again when it, or the agent, is back, and so does one that joins
// later.
func TestKubeletOfSeveralCoordinators(t *testing.T) { // NET-2
	f := newFabric(t, "sev")
	second, third := newFellow(t, f.Cluster, "node2"), newFellow(t, f.Cluster, "node3")
	hidden := f.join("node4", f.Hidden)
	f.MustWith(t, fmt.Sprintf(policyPods, "node4"), "apply", "-f", "-")
	f.MustWith(t, fmt.Sprintf(talks, "node4"), "apply", "-f", "-")
	f.Must(t, "wait", "--for=condition=Ready", "--timeout=60s", "pod/web-node4", "pod/talks")
	f.serversOn("node4")
	at := map[string]string{"node1": f.Address, "node2": second.Address, "node3": third.Address}
	all := func(after string) {
		t.Helper()
		for _, name := range []string{"node1", "node2", "node3", "node5"} {
			if address, there := at[name]; there {
				f.through(name, address, "node4", after)
			}
		}
	}
	all("the node came")

	followed, end := hear(t, f.KubectlCommand("--server=https://"+third.Address+":6443", "logs", "-f", "talks", "--tail=1"))
	defer end()
	followed.until(t, "logs -f through node3", "line")

	delete(at, "node2")
	_ = second.cmd.Process.Signal(syscall.SIGKILL)
	_ = second.cmd.Wait()
	second.cmd = nil
	all("a coordinator was killed")
	followed.until(t, "logs -f through node3, after another coordinator was killed", "line")

	at["node2"] = second.Address
	second.start(t, f.Cluster)
	all("it is back")

	// Its machine is cut off without a word, and later there again: the connection of before
	// is one that only the agent knows to have ended, or only the coordinator.
	if err := second.Cut(); err != nil {
		t.Fatal(err)
	}
	delete(at, "node2")
	all("its machine was cut off")
	time.Sleep(30 * time.Second) // longer than a sign of life may take
	if err := second.Plug(); err != nil {
		t.Fatal(err)
	}
	at["node2"] = second.Address
	all("its machine is there again")

	if err := hidden.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := hidden.Start(); err != nil {
		t.Fatal(err)
	}
	all("a restart of the agent")

	f.Kill(t, "coordinator")
	all("the first coordinator was killed and started again")

	fifth := newFellow(t, f.Cluster, "node5")
	at["node5"] = fifth.Address
	all("another coordinator has joined")
	if n := strings.Count(hidden.Logs(), "level=WARN msg=\"a coordinator does not reach"); n > 6 {
		t.Errorf("the log complains %d times", n)
	}
}
