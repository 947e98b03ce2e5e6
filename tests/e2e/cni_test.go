package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	agentconfig "github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/tests/harness"
)

// wayward is a third party's plugin: the one of this network, that does first what is in
// the file beside it with the name of the verb. Each call is a line in the file calls.
const wayward = `#!/bin/sh
dir=$(dirname "$0")
echo "$CNI_COMMAND $CNI_CONTAINERID" >>"$dir/calls"
cat >"$dir/stdin-$CNI_COMMAND.$$"
if [ -e "$dir/$CNI_COMMAND" ]; then . "$dir/$CNI_COMMAND"; fi
mv "$dir/stdin-$CNI_COMMAND.$$" "$dir/stdin-$CNI_COMMAND"
exec "$dir/shoal-cni" <"$dir/stdin-$CNI_COMMAND"
`

// waywardConf is its configuration, in CNI's version with GC and STATUS.
const waywardConf = `{"cniVersion": "1.1.0", "name": "wayward", "plugins": [{"type": "wayward", "bridge": "third0", "table": "third",
  "podCIDRs": ["10.88.0.0/24"], "stateDir": %q, "capabilities": {"portMappings": true}}]}`

// waywardNode is a node whose pods are connected by the plugin.
type waywardNode struct {
	*harness.Agent
	c *harness.Cluster
	t *testing.T
}

// does has the plugin do something at the begin of a verb; "" nothing.
func (n waywardNode) does(verb, script string) {
	n.t.Helper()
	file := filepath.Join(n.Dir, "cni-bin", verb)
	var err error
	if script == "" {
		err = os.Remove(file)
	} else if err = os.WriteFile(file+".new", []byte(script+"\n"), 0o644); err == nil {
		err = os.Rename(file+".new", file)
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// read is what is in a file of the plugin.
func (n waywardNode) read(file string) string {
	text, err := os.ReadFile(filepath.Join(n.Dir, "cni-bin", file))
	if err != nil {
		n.t.Error(err)
	}
	return string(text)
}

// run makes a pod.
func (n waywardNode) run(name string) {
	n.t.Helper()
	n.c.MustWith(n.t, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {nodeName: wayward,
  terminationGracePeriodSeconds: 0, containers: [{name: c, image: "localhost/hello:1",
  readinessProbe: {httpGet: {port: 8080}}}]}}`, name), "apply", "-f", "-")
}

// ready waits for a pod.
func (n waywardNode) ready(name string) {
	n.t.Helper()
	n.c.Must(n.t, "wait", "pod/"+name, "--for=condition=Ready", "--timeout=60s")
}

// tells waits for an event of a pod.
func (n waywardNode) tells(pod, reason string, words ...string) {
	n.t.Helper()
	harness.Eventually(n.t, pod+" has the event "+reason, func() (bool, string) {
		out, err := n.c.Kubectl("", "get", "events", "--field-selector", "involvedObject.name="+pod+",reason="+reason,
			"-o", `jsonpath={range .items[*]}{.message}{"\n"}{end}`)
		ok := err == nil && out != ""
		for _, w := range words {
			ok = ok && strings.Contains(out, w)
		}
		return ok, fmt.Sprint(out, err)
	})
}

// namespaces counts the sandboxes' network namespaces.
func (n waywardNode) namespaces() int {
	n.t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		n.t.Fatal(err)
	}
	count := 0
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, " "+n.Dir+"/") && strings.Contains(line, "/ns/net ") {
			count++
		}
	}
	return count
}

// condition waits for what the node says of being ready.
func (n waywardNode) condition(begin string, words ...string) {
	n.t.Helper()
	harness.Eventually(n.t, "the node is Ready: "+begin, func() (bool, string) {
		out, err := n.c.Kubectl("", "get", "node", "wayward", "-o",
			`jsonpath={range .status.conditions[?(@.type=="Ready")]}{.status} {.reason} {.message}{end}`)
		ok := err == nil && strings.HasPrefix(out, begin)
		for _, w := range words {
			ok = ok && strings.Contains(out, w)
		}
		return ok, fmt.Sprint(out, err)
	})
}

// TestPluginMisbehaves: a third party's plugin that hangs, fails or says that it is not
// ready costs the pods that it concerns, and them no longer than that. The pod's event
// says what happened, other pods go on, nothing is left, and after a crash the plugin is
// told which pods there are.
func TestPluginMisbehaves(t *testing.T) {
	t.Parallel() // with a cluster of its own
	c := ownCluster(t, "way")
	if err := c.Up(); err != nil {
		t.Fatal(err)
	}
	a, err := c.Host("wayward", func(_ *harness.Agent, cfg *agentconfig.Config) {
		cfg.PodNetwork = agentconfig.NoNetwork
		cfg.RuntimeRequestTimeout = metav1.Duration{Duration: 2 * time.Second}
	})
	if err != nil {
		t.Fatal(err)
	}
	n := waywardNode{a, c, t}
	installNetwork(t, c, n.Dir, filepath.Join(n.Dir, "cni-conf"), filepath.Join(n.Dir, "cni-bin"))
	conf := fmt.Appendf(nil, waywardConf, filepath.Join(n.Dir, "third"))
	for file, text := range map[string][]byte{"cni-conf/10-third.conflist": conf, "cni-bin/wayward": []byte(wayward)} {
		if err := os.WriteFile(filepath.Join(n.Dir, file), text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	n.condition("True")
	n.run("before")
	n.ready("before")

	n.hangs()
	n.fails()
	n.isNotReady()
	n.crashes()

	uninstallNetwork(t, n.NetNS)
}

// hangs: ADD of one pod does not answer.
func (n waywardNode) hangs() {
	n.does("ADD", `case $CNI_ARGS in *K8S_POD_NAME=stuck*) sleep 4711 & sleep 4712 ;; esac`)
	n.run("stuck")
	n.tells("stuck", "FailedCreatePodSandBox", "Failed to create pod sandbox: ", "failed to setup network for sandbox",
		`plugin network "wayward"`, "its ADD did not answer in time and was ended after 4s")
	n.run("beside")
	n.ready("beside")
	// Each try ends all that it began.
	if count := n.namespaces(); count > 3 {
		n.t.Errorf("%d network namespaces of three pods", count)
	}
	n.does("ADD", "")
	n.ready("stuck")
	if pids := n.processes("4711", "4712"); len(pids) > 0 {
		n.t.Errorf("processes of the plugin are left: %v", pids)
	}
}

// processes of the plugin that sleep so long.
func (n waywardNode) processes(sleeps ...string) (pids []string) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		n.t.Error(err)
	}
	for _, f := range files {
		text, _ := os.ReadFile(f) // it may have ended
		words := strings.Split(string(text), "\x00")
		if len(words) > 1 && words[0] == "sleep" && slices.Contains(sleeps, words[1]) {
			pids = append(pids, filepath.Base(filepath.Dir(f)))
		}
	}
	return pids
}

// fails: ADD of one pod says why it cannot be; DEL of another fails for a while.
func (n waywardNode) fails() {
	n.does("ADD", `case $CNI_ARGS in *K8S_POD_NAME=unlucky*)
echo '{"code": 11, "msg": "the cloud has no address", "details": "ask again"}'; exit 1 ;; esac`)
	n.run("unlucky")
	n.tells("unlucky", "FailedCreatePodSandBox", "the cloud has no address; ask again")
	n.does("ADD", "")
	n.ready("unlucky")

	id := n.sandbox("unlucky")
	n.does("DEL", `case $CNI_ARGS in *K8S_POD_NAME=unlucky*)
echo '{"code": 11, "msg": "the cloud is away"}'; exit 1 ;; esac`)
	n.c.Must(n.t, "delete", "pod", "unlucky", "--wait=false")
	tries := func() int { return strings.Count(n.read("calls"), "DEL "+id) }
	harness.Eventually(n.t, "DEL is tried again", func() (bool, string) { return tries() > 1, n.read("calls") })
	n.does("DEL", "")
	harness.Eventually(n.t, "the pod's address is free", func() (bool, string) {
		held, err := os.ReadDir(filepath.Join(n.Dir, "third"))
		if err != nil {
			return false, err.Error()
		}
		var names []string
		for _, e := range held {
			text, _ := os.ReadFile(filepath.Join(n.Dir, "third", e.Name()))
			names = append(names, e.Name()+" "+string(text))
		}
		all := strings.Join(names, "\n")
		return !strings.Contains(all, id), all
	})
	n.c.Must(n.t, "wait", "pod/unlucky", "--for=delete", "--timeout=60s")
}

// sandbox is the ID of the last one that a pod was connected by.
func (n waywardNode) sandbox(pod string) string {
	files, err := filepath.Glob(filepath.Join(n.Dir, "agent", "cni", "cache", "results", "*"))
	if err != nil {
		n.t.Fatal(err)
	}
	for _, f := range files {
		var at struct {
			ContainerID string     `json:"containerId"`
			Args        [][]string `json:"cniArgs"`
		}
		text, err := os.ReadFile(f)
		if err == nil {
			err = json.Unmarshal(text, &at)
		}
		if err != nil {
			n.t.Fatal(err)
		}
		if slices.ContainsFunc(at.Args, func(a []string) bool { return slices.Equal(a, []string{"K8S_POD_NAME", pod}) }) {
			return at.ContainerID
		}
	}
	n.t.Fatalf("no sandbox of %s in %v", pod, files)
	return ""
}

// isNotReady: STATUS says that no pod can be connected.
func (n waywardNode) isNotReady() {
	n.does("STATUS", `echo '{"code": 50, "msg": "the controller is being upgraded"}'; exit 1`)
	n.condition("False KubeletNotReady container runtime network not ready: NetworkReady=false "+
		"reason:NetworkPluginNotReady", "the controller is being upgraded")
	if got := n.c.Must(n.t, "get", "pod", "before", "-o", "jsonpath={.status.phase}"); got != "Running" {
		n.t.Errorf("the pod of before is %s", got)
	}
	n.does("STATUS", "")
	n.condition("True")
}

// crashes: the agent ends at once, and another one begins.
func (n waywardNode) crashes() {
	if err := n.Kill(); err != nil {
		n.t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(n.Dir, "cni-bin", "calls")); err != nil {
		n.t.Fatal(err)
	}
	_ = os.Remove(filepath.Join(n.Dir, "cni-bin", "stdin-GC")) // of the first start
	if err := n.Start(); err != nil {
		n.t.Fatal(err)
	}
	harness.Eventually(n.t, "the plugin is told which pods there are", func() (bool, string) {
		_, err := os.Stat(filepath.Join(n.Dir, "cni-bin", "stdin-GC"))
		return err == nil && strings.Contains(n.read("calls"), "GC"), fmt.Sprint(err)
	})
	var told struct {
		Valid []struct {
			ContainerID string `json:"containerID"`
		} `json:"cni.dev/valid-attachments"`
	}
	if err := json.Unmarshal([]byte(n.read("stdin-GC")), &told); err != nil {
		n.t.Fatal(err)
	}
	var ids []string
	for _, v := range told.Valid {
		ids = append(ids, v.ContainerID)
	}
	for _, pod := range []string{"before", "beside", "stuck"} {
		if id := n.sandbox(pod); !slices.Contains(ids, id) {
			n.t.Errorf("%s's sandbox %s is not among those that are valid: %v", pod, id, ids)
		}
		got := n.c.Must(n.t, "get", "pod", pod, "-o", "jsonpath={.status.containerStatuses[0].restartCount}")
		if got != "0" {
			n.t.Errorf("%s was restarted %s times", pod, got)
		}
		n.ready(pod)
	}
	if strings.Contains(n.read("calls"), "DEL") {
		n.t.Errorf("a pod that runs was disconnected: %s", n.read("calls"))
	}
}
