package e2e

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	agentconfig "github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/tests/harness"
)

// sealed is a pod with secrets of every kind: a Secret as volume and as
// environment, a value in the pod itself, a token.
const sealed = `
apiVersion: v1
kind: Secret
metadata: {name: s}
stringData: {key: %s}
---
apiVersion: v1
kind: Pod
metadata: {name: sealed}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, "echo $(FROM) > /dev/null; exec sleep 99999"]
    env: [{name: FROM, valueFrom: {secretKeyRef: {name: s, key: key}}}, {name: LITERAL, value: %s}]
    volumeMounts: [{name: s, mountPath: /s}]
  volumes: [{name: s, secret: {secretName: s}}]
`

// TestSecretsAtRest: who has the disk, or a copy of the data directory without
// its keys, finds no Secret in it: not in etcd's files, not in what the node
// keeps, before and after a rotation of the store's key. Nor a pod's token or
// its literal environment on the node.
func TestSecretsAtRest(t *testing.T) {
	s := newSpace(t)
	value, literal := "at-rest-"+unique(), "literal-"+unique()
	s.apply(fmt.Sprintf(sealed, value, literal))
	s.ready("sealed")
	s.says(value, "exec", "sealed", "--", "sh", "-c", "cat /s/key; echo; echo $FROM")
	token := strings.TrimSpace(s.k("exec", "sealed", "--", "cat", "/var/run/secrets/kubernetes.io/serviceaccount/token"))
	if len(token) < 100 {
		t.Fatalf("token: %q", token)
	}
	notOnDisk(t, cluster.Dir, value)
	notOnDisk(t, filepath.Join(cluster.Dir, "agent"), literal, token)

	before := secretsCommand(t, "status")
	if !strings.Contains(before, "secretbox:key-") || strings.Contains(before, "identity") {
		t.Errorf("before: %s", before)
	}
	started := time.Now()
	t.Logf("%s\nafter %v", secretsCommand(t, "rotate"), time.Since(started))
	after := secretsCommand(t, "status")
	if keysIn(after) == keysIn(before) || strings.Count(keysIn(after), "secretbox:key-") != 1 {
		t.Errorf("before: %s\nafter: %s", before, after)
	}
	late := "at-rest-" + unique()
	s.apply(fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: late}\nstringData: {key: %s}", late))
	s.k("patch", "secret", "s", "-p", `{"stringData":{"other":"`+late+`"}}`)
	harness.Eventually(t, "the change is in the pod", func() (bool, string) {
		out, err := cluster.Kubectl("", "-n", s.ns, "exec", "sealed", "--", "cat", "/s/other", "/s/key")
		return err == nil && out == late+value, fmt.Sprint(out, err)
	})
	notOnDisk(t, cluster.Dir, value, late)
	cluster.Kill(t, "coordinator")
	harness.Eventually(t, "the Secret is read by a new coordinator", func() (bool, string) {
		out, err := cluster.Kubectl("", "-n", s.ns, "get", "secret", "late", "-o", "jsonpath={.data.key}")
		return err == nil && out == base64.StdEncoding.EncodeToString([]byte(late)), fmt.Sprint(out, err)
	})
}

// unique is text that nothing else has.
func unique() string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%x", time.Now().UnixNano()))
}

func secretsCommand(t *testing.T, what string) string {
	t.Helper()
	out, err := cluster.Run(filepath.Join(cluster.Bin, "shoal"), "secrets", what, "--data-dir", cluster.Dir)
	if err != nil {
		t.Fatal(out, err)
	}
	return out
}

// keysIn are the keys that a status says Secrets are stored under.
func keysIn(status string) string {
	var keys []string
	for line := range strings.Lines(status) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "secrets" {
			keys = append(keys, f[1])
		}
	}
	return strings.Join(keys, " ")
}

// notOnDisk searches a directory's file system for values, as they are and in
// base64 wherever in a text they begin. What a real machine has below /run is
// left out: that is in memory.
func notOnDisk(t *testing.T, dir string, values ...string) {
	t.Helper()
	var forms [][]byte
	for _, v := range values {
		forms = append(forms, []byte(v))
		for skip := range 3 {
			text := base64.StdEncoding.EncodeToString(append(make([]byte, skip), v...))
			forms = append(forms, []byte(text[4:len(text)-8]))
		}
	}
	top, searched := device(t, dir), 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case os.IsNotExist(err):
			return nil // gone meanwhile
		case err != nil:
			return err
		case d.IsDir() &&
			(path == filepath.Join(cluster.Dir, "run") ||
				path == filepath.Join(cluster.Dir, "images") || device(t, path) != top):
			return fs.SkipDir
		case !d.Type().IsRegular():
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil && !os.IsNotExist(err) {
			return err
		}
		searched++
		for _, f := range forms {
			if bytes.Contains(data, f) {
				t.Errorf("%s has %s in the clear", path, f)
			}
		}
		return nil
	})
	if err != nil || searched < 10 {
		t.Errorf("searched %d files: %v", searched, err)
	}
}

func device(t *testing.T, path string) uint64 {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return st.Dev
}

// forgetful is a pod whose container takes a Secret and a token.
const forgetful = `
apiVersion: v1
kind: Secret
metadata: {name: s}
stringData: {key: value}
---
apiVersion: v1
kind: Pod
metadata: {name: forgetful}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sleep, "%d"]
    env: [{name: FROM, valueFrom: {secretKeyRef: {name: s, key: key}}}]
    volumeMounts: [{name: s, mountPath: /s}]
  volumes: [{name: s, secret: {secretName: s}}]
`

// TestNoSecretsKept: with checkpointSecrets: false a node has no record of a
// Secret or a token. What ends while it is cut off waits for the API, says why,
// and goes on when the API is back.
func TestNoSecretsKept(t *testing.T) {
	s := newSpace(t)
	keep, seconds := false, time.Now().UnixNano()%1e9+1e9
	agent, err := cluster.Host("forgetful", func(_ *harness.Agent, c *agentconfig.Config) { c.CheckpointSecrets = &keep })
	if err == nil {
		err = agent.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer leave(t, agent, "forgetful")
	s.shows("forgetful", "get", "nodes", "-o", "name")
	s.k("wait", "node/forgetful", "--for=condition=Ready", "--timeout=30s")
	s.apply(fmt.Sprintf(forgetful, "forgetful", seconds))
	s.ready("forgetful")
	records := func(kind, prefix string) []string {
		found, err := filepath.Glob(filepath.Join(agent.Dir, "agent", "checkpoint", kind, prefix+"*"))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if got := append(records("objects", "secret_"), records("tokens", "")...); len(got) > 0 {
		t.Errorf("kept: %v", got)
	}
	if len(records("objects", "configmap_")) == 0 || len(records("pods", "")) == 0 {
		t.Error("nothing is kept at all")
	}

	uid := s.k("get", "pod", "forgetful", "-o", "jsonpath={.metadata.uid}")
	if err := agent.Cut(); err != nil {
		t.Fatal(err)
	}
	if err := agent.Kill(); err != nil {
		t.Fatal(err)
	}
	pid, err := cluster.Run("pgrep", "-fx", fmt.Sprintf("sleep %d", seconds))
	if err != nil {
		t.Fatal(err)
	}
	victim, err := strconv.Atoi(strings.TrimSpace(pid))
	if err != nil {
		t.Fatal(err)
	}
	kill(t, []int{victim})
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	record, written := filepath.Join(agent.Dir, "agent", "checkpoint", "pods", uid+".json"), map[time.Time]bool{}
	harness.Eventually(t, "the agent has tried to start the container", func() (bool, string) {
		if info, err := os.Stat(record); err == nil {
			written[info.ModTime()] = true
		}
		return len(written) > 3, fmt.Sprint(written) // the end, then each try with the time of the next
	})
	if out, err := cluster.Run("pgrep", "-fx", fmt.Sprintf("sleep %d", seconds)); err == nil {
		t.Errorf("the container runs without its Secret: %s", out)
	}
	if err := agent.Plug(); err != nil {
		t.Fatal(err)
	}
	s.field("pod/forgetful", ".status.containerStatuses[0].restartCount", "1")
	s.ready("forgetful")
	s.shows("checkpointSecrets is false", "get", "events", "-o", "jsonpath={.items[*].message}")
	s.until("value", "exec", "forgetful", "--", "sh", "-c", "cat /s/key")
}

// TestLostKey: an agent whose key is gone goes on with the copy that lasts as long as the
// machine runs. Where that is gone too it ends what it cannot adopt, starts its pods anew,
// once, and leaves none that were deleted meanwhile.
func TestLostKey(t *testing.T) {
	s := newSpace(t)
	agent, err := cluster.Join("keyless")
	if err != nil {
		t.Fatal(err)
	}
	defer leave(t, agent, "keyless")
	s.shows("keyless", "get", "nodes", "-o", "name")
	s.k("wait", "node/keyless", "--for=condition=Ready", "--timeout=30s")
	kept, gone := time.Now().UnixNano()%1e9+1e9, time.Now().UnixNano()%1e9+2e9
	for name, seconds := range map[string]int64{"kept": kept, "gone": gone} {
		s.apply(
			fmt.Sprintf(onNode, name, name, "keyless",
				"localhost/busybox:1", fmt.Sprintf(`command: [sleep, "%d"]`, seconds)))
	}
	s.ready("kept", "gone")
	sleeping := func(seconds int64) string {
		out, _ := cluster.Run("pgrep", "-fx", fmt.Sprintf("sleep %d", seconds))
		return strings.TrimSpace(out)
	}
	before := sleeping(kept)
	if before == "" || sleeping(gone) == "" {
		t.Fatal("no process")
	}
	if err := agent.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(agent.Dir, "agent", "checkpoint.key")); err != nil {
		t.Fatal(err)
	}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "there is another key", func() (bool, string) {
		_, err := os.Stat(filepath.Join(agent.Dir, "agent", "checkpoint.key"))
		return err == nil && strings.Contains(agent.Logs(), "records were sealed"), fmt.Sprint(err, agent.Logs())
	})
	s.ready("kept", "gone")
	if now := sleeping(kept); now != before {
		t.Errorf("the pod has the process %s, not %s", now, before)
	}
	// Nothing has the key any more.
	if err := agent.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"agent/checkpoint.key", "run/checkpoint.key"} {
		if err := os.Remove(filepath.Join(agent.Dir, file)); err != nil {
			t.Fatal(err)
		}
	}
	s.k("delete", "pod", "gone", "--force")
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the pod runs again, once", func() (bool, string) {
		now := sleeping(kept)
		return now != "" && now != before && !strings.Contains(now, "\n"), now
	})
	s.ready("kept")
	if left := sleeping(gone); left != "" {
		t.Errorf("a deleted pod runs on: %s", left)
	}
	if now := sleeping(kept); strings.Contains(now, "\n") {
		t.Errorf("the pod runs twice: %s", now)
	}
	if !strings.Contains(agent.Logs(), "sealed with another key") {
		t.Error("nothing is told")
	}
}
