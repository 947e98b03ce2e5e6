package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestHelm installs, upgrades, rolls back and removes a chart of most kinds.
func TestHelm(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	dir := t.TempDir()
	helm := func(want string, args ...string) {
		t.Helper()
		cmd := cluster.Command("helm", append([]string{"--kubeconfig", cluster.Kubeconfig(), "-n", s.ns}, args...)...)
		cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+dir, "HELM_CONFIG_HOME="+dir, "HELM_DATA_HOME="+dir)
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), want) {
			t.Fatalf("helm %s: %v; want %q in\n%s", strings.Join(args, " "), err, want, out)
		}
	}
	chart := filepath.Join("testdata", "chart")
	greeting := []string{"get", "pods", "-l", "app.kubernetes.io/instance=shop", "-o", "name"}
	helm("shop says hello.", "install", "shop", chart, "--wait", "--timeout=60s")
	s.says("Hello from pod shop-", "logs", "job/shop-check")
	s.says("1/1", "get", "job", "shop-check")
	s.says("2/2", "get", "deployment", "shop")
	if n := strings.Count(s.k(greeting...), "pod/"); n != 2 {
		t.Errorf("%d pods", n)
	}
	helm("shop says bye.", "upgrade", "shop", chart, "--set=greeting=bye,replicas=1", "--wait", "--timeout=60s")
	s.says("bye", "get", "configmap", "shop", "-o", "jsonpath={.data.greeting}")
	s.says("1/1", "get", "deployment", "shop")
	helm("Rollback was a success", "rollback", "shop", "1", "--wait", "--timeout=60s")
	s.says("hello", "get", "configmap", "shop", "-o", "jsonpath={.data.greeting}")
	s.says("2/2", "get", "deployment", "shop")
	helm("superseded", "history", "shop")
	helm("deployed", "list")
	helm("uninstalled", "uninstall", "shop", "--wait", "--timeout=60s")
	s.until("", "get", "deployments,daemonsets,services,poddisruptionbudgets,roles", "-o", "name")
	s.until("", "get", "pods", "-l", "app.kubernetes.io/instance=shop", "-o", "name")
}
