package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoal-project/shoal/coordinator/pki"
	"github.com/shoal-project/shoal/tests/harness"
)

// TestExpiredCertificates: `shoal up` renews what has expired, the API server's
// certificate too, and pods are there as before; an expired CA is told with the
// remedy, which works.
func TestExpiredCertificates(t *testing.T) {
	t.Parallel() // with a cluster of its own
	c := ownCluster(t, "expired")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err, c.Logs())
		}
	}
	must(c.Up())
	c.Must(t, "run", "kept", "--image=localhost/busybox:1", "--", "sleep", "9999")
	c.Must(t, "wait", "pod/kept", "--for=condition=Ready", "--timeout=60s")
	must(c.Down())

	keys := pki.Dir(filepath.Join(c.Dir, "coordinator", "pki"))
	ca, err := keys.CA()
	must(err)
	past := time.Now().Add(-2 * pki.CertLifetime)
	expire := func(name string, s pki.Spec) {
		t.Helper()
		cert, key, err := ca.Issue(s, past)
		must(err)
		must(os.WriteFile(name+".crt", cert, 0o600))
		must(os.WriteFile(name+".key", key, 0o600))
	}
	expire(keys.Path("apiserver"), pki.Spec{User: "kube-apiserver", Names: []string{"localhost"}, Server: true})
	expire(keys.Path("apiserver-kubelet-client"),
		pki.Spec{User: "kube-apiserver-kubelet-client", Groups: []string{pki.KubeletClientGroup}})
	expired := func(file string, s pki.Spec) {
		t.Helper()
		data, err := ca.Kubeconfig("https://127.0.0.1:6443", s, past)
		must(err)
		must(os.WriteFile(file, data, 0o600))
	}
	admin := pki.Spec{User: pki.AdminUser, Groups: []string{pki.AdminGroup}}
	expired(c.Kubeconfig(), admin)
	expired(filepath.Join(c.Dir, "agent", "kubeconfig"), pki.Spec{User: "system:node:node1", Groups: []string{"system:nodes"}})
	must(c.Up())
	// Until the agent has looked, the API shows the pod as it was before.
	harness.Eventually(t, "exec in the pod", func() (bool, string) {
		_, err := c.Kubectl("", "exec", "kept", "--", "true")
		return err == nil, fmt.Sprint(err)
	})

	// One who comes with an expired certificate or a wrong token is told.
	old := filepath.Join(c.Dir, "old-kubeconfig")
	expired(old, admin)
	nobody := filepath.Join(c.Dir, "no-kubeconfig")
	writeFile(t, nobody, `{apiVersion: v1, kind: Config}`)
	for _, args := range [][]string{{"--kubeconfig", old},
		{"--kubeconfig", nobody, "--server=https://127.0.0.1:6443", "--insecure-skip-tls-verify", "--token=wrong"}} {
		if _, err := c.Kubectl("", append(args, "get", "pods")...); err == nil || !strings.Contains(err.Error(), "You must be logged in to the server") {
			t.Errorf("%v: %v", args, err)
		}
	}
	must(c.Down())

	caPEM, keyPEM, err := ca.Issue(pki.Spec{User: "shoal-ca", Server: true}, past)
	must(err)
	must(os.WriteFile(keys.Path("ca.crt"), caPEM, 0o600))
	must(os.WriteFile(keys.Path("ca.key"), keyPEM, 0o600))
	if err := c.Up(); err == nil || !strings.Contains(err.Error(), "this CA expired on") ||
		!strings.Contains(err.Error(), "move ca.crt and ca.key away") {
		t.Errorf("up with an expired CA: %v", err)
	}
	must(os.Remove(keys.Path("ca.crt")))
	must(os.Remove(keys.Path("ca.key")))
	must(c.Up())
	c.Must(t, "wait", "pod/kept", "--for=condition=Ready", "--timeout=60s")
	// The pod was Ready before; the node's serving certificate is of the new CA.
	harness.Eventually(t, "exec in the pod under the new CA", func() (bool, string) {
		_, err := c.Kubectl("", "exec", "kept", "--", "true")
		return err == nil, fmt.Sprint(err)
	})
}

// TestRefusedAgent: an agent whose certificate has expired, or whose token is
// wrong, says which file and what to do.
func TestRefusedAgent(t *testing.T) {
	t.Parallel() // with a cluster of its own
	c := ownCluster(t, "refused")
	if err := c.Up(); err != nil {
		t.Fatal(err)
	}
	agent, err := c.Join("node2")
	if err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "node2", func() (bool, string) {
		out, err := c.Kubectl("", "get", "nodes", "-o", "name")
		return err == nil && strings.Contains(out, "node2"), fmt.Sprint(out, err)
	})
	if err := agent.Kill(); err != nil {
		t.Fatal(err)
	}
	ca, err := pki.Dir(filepath.Join(c.Dir, "coordinator", "pki")).CA()
	if err != nil {
		t.Fatal(err)
	}
	server := "https://" + c.Address + ":6443"
	expired, err := ca.Kubeconfig(server, pki.Spec{User: "system:node:node2", Groups: []string{"system:nodes"}},
		time.Now().Add(-2*pki.CertLifetime))
	if err != nil {
		t.Fatal(err)
	}
	token := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}], users: [{name: u, user: {token: wrong}}]}`,
		server)
	kubeconfig := filepath.Join(agent.Dir, "kubeconfig")
	for _, k := range []struct{ name, text, says string }{
		{"expired", string(expired), "the client certificate of system:node:node2 expired on"},
		{"token", token, "the API server does not take this node's credential"},
	} {
		writeFile(t, kubeconfig, k.text)
		if err := agent.Start(); err != nil {
			t.Fatal(err)
		}
		harness.Eventually(t, k.name, func() (bool, string) {
			log := agent.Logs()
			return strings.Contains(log, k.says) && strings.Contains(log, kubeconfig) &&
				strings.Contains(log, "shoal-coordinator kubeconfig"), log
		})
		if n := strings.Count(agent.Logs(), k.says); n != 1 {
			t.Errorf("%s: told %d times", k.name, n)
		}
		if err := agent.Kill(); err != nil && k.name == "token" { // the other ended by itself
			t.Error(err)
		}
	}
}
