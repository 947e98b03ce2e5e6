package e2e

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	agentconfig "github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/tests/harness"
)

// talkers write numbers at a pace at which none may be lost, and when told as much as they can.
const talkers = `
apiVersion: v1
kind: Pod
metadata: {name: talker}
spec:
  nodeName: logs
  terminationGracePeriodSeconds: 0
  tolerations: [{operator: Exists}]
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, "i=0; while [ $i -lt 40 ]; do seq $((i*1000)) $((i*1000+999)); i=$((i+1)); sleep 0.1; done; touch /h/said;
      while [ ! -f /h/flood ]; do sleep 0.1; done; yes 01234567890123456789012345678901234567890123456789 | head -c 40000000; echo; echo end; touch /h/flooded; sleep 3600"]
    volumeMounts: [{name: h, mountPath: /h}]
  volumes: [{name: h, hostPath: {path: %s}}]
`

const (
	logMax  = 256 << 10
	logsMax = 4
)

// logFiles are the files of the talker's log by their names, and the largest of them.
func logFiles(t *testing.T, agent *harness.Agent) (names []string, largest, all int64) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(agent.Dir, "pod-logs", "*_talker_*", "c", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range found {
		if strings.HasSuffix(name, ".tmp") {
			continue // of the next
		}
		st, err := os.Stat(name)
		if err != nil || strings.HasPrefix(filepath.Base(name), ".") && slices.ContainsFunc(found, func(o string) bool {
			other, err := os.Stat(o)
			return o != name && err == nil && os.SameFile(st, other)
		}) {
			continue // removed meanwhile, or a second name
		}
		names, largest, all = append(names, name), max(largest, st.Size()), all+st.Size()
	}
	return names, largest, all
}

// lineCount counts the lines that are written to it.
type lineCount struct{ atomic.Int64 }

func (n *lineCount) Write(p []byte) (int, error) {
	n.Add(int64(bytes.Count(p, []byte("\n"))))
	return len(p), nil
}

// TestLogsNeverPassTheirSize: a log is begun anew before it is too large, by the container's
// monitor itself: also between two looks of the agent, and with none. Who writes at a pace
// that a disk can take loses nothing, nor does who reads.
func TestLogsNeverPassTheirSize(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	agent, err := cluster.Host("logs", func(_ *harness.Agent, c *agentconfig.Config) {
		c.ContainerLogMaxSize, c.ContainerLogMaxFiles = strconv.Itoa(logMax), logsMax
		c.RegisterWithTaints = []string{"only=this:NoSchedule"}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer leave(t, agent, "logs")
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	s.k("wait", "node/logs", "--for=create", "--timeout=60s")
	s.k("wait", "node/logs", "--for=condition=Ready", "--timeout=60s")
	host := t.TempDir()
	s.apply(fmt.Sprintf(talkers, host))
	s.ready("talker")

	followed := make(chan string, 1)
	var heard lineCount
	go func() {
		var out strings.Builder
		cmd := cluster.KubectlCommand(s.args([]string{"logs", "-f", "talker"})...)
		cmd.Stdout = io.MultiWriter(&out, &heard)
		_ = cmd.Run() // the agent that it asks is killed
		followed <- out.String()
	}()
	wait := func(name string) {
		t.Helper()
		harness.Eventually(t, name, func() (bool, string) {
			if _, largest, all := logFiles(t, agent); largest > logMax || all > (logsMax+1)*logMax {
				t.Fatalf("a log has %d bytes, all have %d", largest, all)
			}
			_, err := os.Stat(filepath.Join(host, name))
			return err == nil, "not yet"
		})
	}
	wait("said")
	var names []string
	harness.Eventually(t, "all logs have their names", func() (bool, string) {
		names, _, _ = logFiles(t, agent)
		return len(names) == logsMax, strings.Join(names, "\n")
	})
	// The newest has the shortest name, and so comes first.
	slices.Sort(names)
	var kept []string
	part := ""
	for _, name := range append(names[1:], names[0]) {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			f := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
			if part += f[3]; f[2] == "F" {
				kept, part = append(kept, part), ""
			}
		}
	}
	kept = kept[1:] // which may have begun in a log that is gone
	consecutive := func(lines []string) {
		t.Helper()
		for i, line := range lines {
			if want := strconv.Itoa(40_000 - len(lines) + i); line != want {
				t.Fatalf("line %d of %d is %q, want %s", i, len(lines), line, want)
			}
		}
	}
	if len(kept) < (logsMax-1)*logMax/60 {
		t.Errorf("%d lines are kept", len(kept))
	}
	consecutive(kept)

	harness.Eventually(t, "who follows the log has it", func() (bool, string) {
		return heard.Load() >= 40_000, fmt.Sprint(heard.Load(), " lines")
	})
	before := pids(t, s.ns)
	if err := agent.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(host, "flood"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wait("flooded")
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	s.shows("end", "logs", "talker", "--tail=1")
	if after := pids(t, s.ns); after != before {
		t.Errorf("the pod is another: %s, was %s", after, before)
	}
	select {
	case out := <-followed: // it ended with the agent
		lines := strings.Fields(out)
		consecutive(lines[:min(len(lines), 40_000)])
		if len(lines) < 40_000 {
			t.Errorf("who followed the log got %d lines", len(lines))
		}
	case <-time.After(time.Minute):
		t.Error("who followed the log still does")
	}
}

// TestLogsOfDeletedPods: kubectl logs shows those of a pod that is gone, by its name until
// there is another of it, by its UID too; never to a namespace that came after.
func TestLogsOfDeletedPods(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	run := func(word string) string {
		s.apply(`{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {terminationGracePeriodSeconds: 0, restartPolicy: OnFailure,
  initContainers: [{name: before, image: "localhost/busybox:1", command: [echo, "first ` + word + `"]}],
  containers: [{name: c, image: "localhost/busybox:1", volumeMounts: [{name: m, mountPath: /m}],
    command: [sh, -c, "[ -f /m/x ] && { echo ` + word + ` again; exec sleep 3600; }; touch /m/x; echo ` + word + `; exit 1"]}],
  volumes: [{name: m, emptyDir: {}}]}}`)
		s.shows(word+" again", "logs", "p")
		return strings.TrimSpace(s.k("get", "pod", "p", "-o", "jsonpath={.metadata.uid}"))
	}
	s.refused("not found", "logs", "p")
	one := run("one")
	s.k("delete", "pod", "p")
	s.refused("not found", "get", "pod", "p")
	s.says("one again", "logs", "p")
	s.says("was deleted", "logs", "p")
	s.says("one again", "logs", "p", "--follow", "--tail=1")
	s.says("first one", "logs", "p", "-c", "before")
	if out := s.k("logs", "p", "--previous"); !strings.Contains(out, "one") || strings.Contains(out, "again") {
		t.Errorf("of the run before: %q", out)
	}
	s.says("one again", "get", "--raw", "/api/v1/namespaces/"+s.ns+"/pods/p/log?container=c")
	s.refused("not valid for pod", "logs", "p", "-c", "other")
	s.refused("not found", "exec", "p", "--", "true")

	two := run("two")
	s.says("two again", "logs", "p")
	s.says("one again", "logs", "p."+one)
	s.k("delete", "pod", "p")
	s.says("two again", "logs", "p")
	s.says("two again", "logs", "p."+two)
	s.says("one again", "logs", "p."+one)
	s.refused("not found", "logs", "p.none")

	other := s.ns + "-again"
	cluster.Must(t, "create", "namespace", other)
	cluster.Must(t, "-n", other, "run", "p", "--image=localhost/busybox:1", "--restart=Never", "--", "echo", "secret")
	cluster.Must(t, "-n", other, "wait", "pod/p", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
	cluster.Must(t, "-n", other, "delete", "pod", "p")
	if out := cluster.Must(t, "-n", other, "logs", "p"); !strings.Contains(out, "secret") {
		t.Errorf("%q", out)
	}
	cluster.Must(t, "delete", "namespace", other)
	time.Sleep(time.Second) // times of creation are in seconds
	cluster.Must(t, "create", "namespace", other)
	defer cluster.Must(t, "delete", "namespace", other)
	if out, err := cluster.Kubectl("", "-n", other, "logs", "p"); err == nil || !strings.Contains(out+err.Error(), "not found") {
		t.Errorf("logs of another namespace's pod: %q, %v", out, err)
	}
}
