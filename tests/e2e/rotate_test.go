package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-project/shoal/coordinator/pki"
	"github.com/shoal-project/shoal/tests/harness"
)

// TestClusterCARotates: the CA changes below two nodes that run on, while requests to the
// API and into containers go on; nothing restarts, and a node that starts later with its
// old kubeconfig is of the cluster still.
func TestClusterCARotates(t *testing.T) {
	t.Parallel() // with a cluster of its own
	c := ownCluster(t, "rotate")
	if err := c.Up(); err != nil {
		t.Fatal(err, c.Logs())
	}
	host, err := c.Host("second")
	if err != nil {
		t.Fatal(err)
	}
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "second is Ready", func() (bool, string) {
		out, err := c.Kubectl("", "get", "node", "second", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
		return out == "True", fmt.Sprint(out, err)
	})
	nodes := []string{"node1", "second"}
	for _, node := range nodes {
		c.Must(t, "run", "on-"+node, "--image=localhost/busybox:1",
			`--overrides={"spec":{"nodeName":"`+node+`"}}`, "--", "sleep", "9999")
	}
	for _, node := range nodes {
		c.Must(t, "wait", "pod/on-"+node, "--for=condition=Ready", "--timeout=90s")
	}
	enter := func() error {
		for _, node := range nodes {
			if _, err := c.Kubectl("", "exec", "on-"+node, "--", "true"); err != nil {
				return err
			}
		}
		return nil
	}
	harness.Eventually(t, "exec on both nodes", func() (bool, string) {
		err := enter()
		return err == nil, fmt.Sprint(err)
	})
	keys := pki.Dir(filepath.Join(c.Dir, "coordinator", "pki"))
	before := read(t, keys.Path(pki.CAFile))
	own := read(t, filepath.Join(host.Dir, "kubeconfig"))

	var entered atomic.Int64
	stop, done := make(chan struct{}), sync.WaitGroup{}
	done.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
			}
			if err := enter(); err != nil {
				t.Errorf("while the CA changes: %v", err)
			}
			entered.Add(1)
		}
	})
	shoal := func(args ...string) {
		t.Helper()
		was := entered.Load()
		out, err := c.Run(filepath.Join(c.Bin, "shoal"), append(args, "--data-dir", c.Dir)...)
		t.Logf("%v:\n%s", args, out)
		if err != nil {
			t.Fatal(err, c.Logs())
		}
		harness.Eventually(t, "requests go on", func() (bool, string) { return entered.Load() > was+3, "" })
	}
	shoal("keys", "rotate", "ca")
	shoal("keys", "sign", "ca")
	shoal("keys", "status")
	shoal("keys", "drop", "ca")
	close(stop)
	done.Wait()
	t.Logf("%d times into both containers", entered.Load())

	after := read(t, keys.Path(pki.CAFile))
	if after == before || strings.Count(after, "BEGIN CERTIFICATE") != 1 {
		t.Errorf("the cluster has %d CAs, the old one among them: %v", strings.Count(after, "BEGIN CERTIFICATE"),
			strings.Contains(after, before))
	}
	for _, node := range nodes {
		n := c.Must(t, "get", "pod", "on-"+node, "-o", "jsonpath={.status.containerStatuses[0].restartCount}")
		if n != "0" {
			t.Errorf("the container on %s restarted: %s", node, n)
		}
	}
	if read(t, filepath.Join(host.Dir, "kubeconfig")) != own {
		t.Error("the node's kubeconfig is another one")
	}
	if err := errors.Join(host.Kill(), host.Start()); err != nil {
		t.Fatal(err)
	}
	c.Must(t, "run", "later", "--image=localhost/busybox:1", `--overrides={"spec":{"nodeName":"second"}}`, "--",
		"sleep", "9999")
	c.Must(t, "wait", "pod/later", "--for=condition=Ready", "--timeout=90s")
	harness.Eventually(t, "exec after the agent's restart", func() (bool, string) {
		err := enter()
		return err == nil, fmt.Sprint(err)
	})
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
