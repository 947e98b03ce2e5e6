package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	agentconfig "github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/tests/harness"
)

// crasher ends three times and then runs; each run says its number.
const crasher = `
apiVersion: v1
kind: Pod
metadata: {name: crasher}
spec:
  nodeName: few
  terminationGracePeriodSeconds: 0
  tolerations: [{operator: Exists}]
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, "n=$(cat /d/n || echo 0) 2>/dev/null; echo run $n; echo $((n+1)) >/d/n; [ $n = 3 ] && sleep 3600; exit 1"]
    volumeMounts: [{name: d, mountPath: /d}]
  volumes: [{name: d, emptyDir: {}}]
`

const done = `
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  nodeName: few
  restartPolicy: Never
  tolerations: [{operator: Exists}]
  containers: [{name: c, image: localhost/busybox:1, command: [echo, "I am %[1]s"]}]
`

// TestDeadContainers: GC-16..18. A node keeps so many ended runs of a container, and so
// many of all; kubectl shows the previous one until it goes.
func TestDeadContainers(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	agent, err := cluster.Host("few", func(_ *harness.Agent, c *agentconfig.Config) {
		c.MaximumDeadContainersPerContainer, c.MaximumDeadContainers = 2, 3
		c.RegisterWithTaints = []string{"only=this:NoSchedule"}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer leave(t, agent, "few")
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	s.k("wait", "node/few", "--for=create", "--timeout=60s")
	s.k("wait", "node/few", "--for=condition=Ready", "--timeout=60s")
	kept := func(pod, want string) {
		t.Helper()
		harness.Eventually(t, pod+" has the logs "+want, func() (bool, string) {
			found, err := filepath.Glob(filepath.Join(agent.Dir, "pod-logs", s.ns+"_"+pod+"_*", "c", "*.log"))
			var names []string
			for _, f := range found {
				names = append(names, filepath.Base(f))
			}
			got := strings.Join(names, " ")
			return err == nil && got == want, got
		})
	}
	s.apply(crasher)
	s.field("pod/crasher", ".status.containerStatuses[0].restartCount", "2")
	s.field("pod/crasher", ".status.containerStatuses[0].state.waiting.reason", "CrashLoopBackOff")
	kept("crasher", "1.log 2.log")
	s.shows("run 2", "logs", "-p", "crasher")
	s.shows("run 2", "logs", "crasher")
	s.field("pod/crasher", ".status.containerStatuses[0].restartCount", "3")
	s.ready("crasher")
	kept("crasher", "1.log 2.log 3.log")
	s.shows("run 2", "logs", "-p", "crasher")
	s.shows("run 3", "logs", "crasher")

	for i, logs := range []string{"1.log 2.log 3.log", "2.log 3.log", "3.log"} {
		name := fmt.Sprint("done", i)
		s.apply(fmt.Sprintf(done, name))
		s.field("pod/"+name, ".status.phase", "Succeeded")
		s.shows("I am "+name, "logs", name)
		kept("crasher", logs)
	}
	s.refused(`previous terminated container "c" in pod "crasher" not found`, "logs", "-p", "crasher")
	s.shows("run 3", "logs", "crasher")
}
