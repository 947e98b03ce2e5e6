package e2e

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/shoal-project/shoal/tests/harness"
)

// cluster is shared by all tests that do not break it; each uses a namespace
// of its own.
var cluster *harness.Cluster

// namespaces counts those made.
var namespaces atomic.Int64

func TestMain(m *testing.M) {
	if args := os.Getenv(rogueEnv); args != "" {
		fmt.Fprintln(os.Stderr, rogue(strings.Fields(args)))
		os.Exit(1)
	}
	if dir := os.Getenv(pluginEnv); dir != "" {
		fmt.Fprintln(os.Stderr, (&devicePlugin{dir: dir}).serve())
		os.Exit(1)
	}
	if kubelet := os.Getenv(monitorEnv); kubelet != "" {
		monitor(kubelet)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var err error
	if cluster, err = harness.Start("e2e"); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	code := m.Run()
	if code != 0 {
		fmt.Fprintln(os.Stderr, cluster.Logs())
	}
	if err := cluster.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e: the cluster left something behind:", err)
		return 1
	}
	return code
}

// namespace makes a namespace for one test and deletes it in the end. Its name
// is a new one each time: with -count the one before may still be ending.
func namespace(t *testing.T) string {
	t.Helper()
	name := fmt.Sprintf("e2e-%s-%d", strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name())),
		namespaces.Add(1))
	cluster.Must(t, "create", "namespace", name)
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := cluster.Kubectl("", "-n", name, "get", "pods,deployments,daemonsets,jobs,services,events", "-o", "wide")
			t.Log(out)
		}
		// Most test pods ignore SIGTERM: do not wait out their grace period.
		_, _ = cluster.Kubectl("", "-n", name, "delete", "pods", "--all", "--force", "--wait=false")
		if _, err := cluster.Kubectl("", "delete", "namespace", name, "--wait=false"); err != nil {
			t.Error(err)
		}
	})
	return name
}
