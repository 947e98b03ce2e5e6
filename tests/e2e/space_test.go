package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/shoal-project/shoal/tests/harness"
)

// space is one test's namespace with kubectl aimed at it. Checks that end in
// t.Error let a sweep go on and show all that is wrong at once.
type space struct {
	t  *testing.T
	ns string
}

func newSpace(t *testing.T) space {
	t.Helper()
	return space{t, namespace(t)}
}

func (s space) args(args []string) []string { return append([]string{"-n", s.ns}, args...) }

// k runs kubectl, which must succeed.
func (s space) k(args ...string) string {
	s.t.Helper()
	return cluster.Must(s.t, s.args(args)...)
}

// apply applies a manifest, which must succeed.
func (s space) apply(manifest string) {
	s.t.Helper()
	cluster.MustWith(s.t, manifest, s.args([]string{"apply", "-f", "-"})...)
}

// says checks that kubectl succeeds and prints want.
func (s space) says(want string, args ...string) {
	s.t.Helper()
	s.saysWith("", want, args...)
}

func (s space) saysWith(stdin, want string, args ...string) {
	s.t.Helper()
	cmd := cluster.KubectlCommand(s.args(args)...)
	if stdin != "" {
		cmd.Stdin = strings.NewReader(stdin)
	}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), want) {
		s.t.Errorf("kubectl %s: %v; want %q in\n%s", strings.Join(args, " "), err, want, out)
	}
}

// refused checks that kubectl fails and says why.
func (s space) refused(want string, args ...string) {
	s.t.Helper()
	s.refusedWith("", want, args...)
}

func (s space) refusedWith(stdin, want string, args ...string) {
	s.t.Helper()
	cmd := cluster.KubectlCommand(s.args(args)...)
	if stdin != "" {
		cmd.Stdin = strings.NewReader(stdin)
	}
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), want) {
		s.t.Errorf("kubectl %s: %v; want a refusal with %q in\n%s", strings.Join(args, " "), err, want, out)
	}
}

// ready waits until a pod is Ready.
func (s space) ready(pods ...string) {
	s.t.Helper()
	for _, p := range pods {
		s.k("wait", "pod/"+p, "--for=condition=Ready", "--timeout=60s")
	}
}

// until waits until kubectl prints exactly want.
func (s space) until(want string, args ...string) {
	s.t.Helper()
	s.poll(want, func(out string) bool { return strings.TrimSpace(out) == want }, args)
}

// shows waits until kubectl prints something with want in it.
func (s space) shows(want string, args ...string) {
	s.t.Helper()
	s.poll(want, func(out string) bool { return strings.Contains(out, want) }, args)
}

func (s space) poll(want string, ok func(string) bool, args []string) {
	s.t.Helper()
	harness.Eventually(s.t, "kubectl "+strings.Join(args, " ")+" shows "+want, func() (bool, string) {
		out, err := cluster.Kubectl("", s.args(args)...)
		if err != nil {
			return false, out + err.Error()
		}
		if ok(out) {
			return true, out
		}
		time.Sleep(100 * time.Millisecond) // kubectl takes CPU that the daemons need
		return false, out
	})
}

// field waits until a field of an object has a value.
func (s space) field(object, path, want string) {
	s.t.Helper()
	s.until(want, "get", object, "-o", "jsonpath={"+path+"}")
}

// exec runs a command in a pod and returns its output.
func (s space) exec(pod string, command ...string) string {
	s.t.Helper()
	return s.k(append([]string{"exec", pod, "--"}, command...)...)
}

// fetch gets a page from inside a pod, once.
func (s space) fetch(pod, url string) (string, error) {
	return cluster.Kubectl("", s.args([]string{"exec", pod, "--", "timeout", "3", "wget", "-qO-", url})...)
}

// sleeper starts a busybox pod that does nothing.
func (s space) sleeper(name string) {
	s.t.Helper()
	s.k("run", name, "--image=localhost/busybox:1", "--restart=Never", "--", "sleep", "3600")
	s.ready(name)
}

// leave ends the agent of a node that a test made, and deletes its Node. What the agent of
// a test that failed said is shown.
func leave(t testing.TB, agent *harness.Agent, node string) {
	t.Helper()
	if t.Failed() {
		t.Log(agent.Logs())
	}
	if err := agent.Stop(); err != nil {
		t.Error(err)
	}
	cluster.Must(t, "delete", "node", node)
}
