package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shoal-project/shoal/tests/harness"
)

// TestHello is the first five minutes of a user: a Deployment, a Service, and
// an answer on its address, on its NodePort and by its DNS name (SVC-1, DNS-1).
func TestHello(t *testing.T) {
	ns := namespace(t)
	cluster.Must(t, "-n", ns, "create", "deployment", "hello", "--image=localhost/hello:1", "--replicas=3")
	cluster.Must(t, "-n", ns, "rollout", "status", "deployment/hello", "--timeout=60s")
	cluster.Must(t, "-n", ns, "expose", "deployment", "hello", "--port=80", "--target-port=8080", "--type=NodePort")
	address := cluster.Must(t, "-n", ns, "get", "service", "hello", "-o", "jsonpath={.spec.clusterIP}")
	port := cluster.Must(t, "-n", ns, "get", "service", "hello", "-o", "jsonpath={.spec.ports[0].nodePort}")
	for _, url := range []string{"http://" + address, fmt.Sprintf("http://%s:%s", cluster.Address, port)} {
		answers(t, url, func() (string, error) { return cluster.Run("curl", "-sS", "--max-time", "2", url) })
	}
	cluster.Must(t, "-n", ns, "run", "client", "--image=localhost/busybox:1", "--restart=Never", "--", "sleep", "3600")
	cluster.Must(t, "-n", ns, "wait", "pod/client", "--for=condition=Ready", "--timeout=60s")
	url := "http://hello." + ns + ".svc.cluster.local"
	answers(t, url, func() (string, error) {
		return cluster.Kubectl("", "-n", ns, "exec", "client", "--", "timeout", "2", "wget", "-qO-", url)
	})
	answers(t, "short name", func() (string, error) {
		return cluster.Kubectl("", "-n", ns, "exec", "client", "--", "timeout", "2", "wget", "-qO-", "http://hello")
	})
}

// answers waits for the hello page, which names a pod and this node.
func answers(t *testing.T, what string, get func() (string, error)) {
	t.Helper()
	harness.Eventually(t, what, func() (bool, string) {
		out, err := get()
		if err != nil {
			return false, err.Error()
		}
		return strings.HasPrefix(out, "Hello from pod hello-") && strings.Contains(out, "on node node1"), out
	})
}
