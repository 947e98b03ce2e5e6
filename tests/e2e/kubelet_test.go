package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509/pkix"
	"encoding/base64"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/util/cert"

	"github.com/shoal-project/shoal/tests/harness"
)

const signingRequest = `{apiVersion: certificates.k8s.io/v1, kind: CertificateSigningRequest, metadata: {name: %s},
  spec: {request: %s, signerName: kubernetes.io/kubelet-serving, usages: [digital signature, server auth]}}`

// TestKubeletCertificate: a node that joins with no more than a kubeconfig has its
// serving certificate from the cluster, so that its logs are read and its containers
// entered by an API server that verifies it. A node that asks for another's name is
// refused, one that asks for another's address waits.
func TestKubeletCertificate(t *testing.T) {
	s := newSpace(t)
	agent, err := cluster.Join("signed")
	if err != nil {
		t.Fatal(err)
	}
	defer leave(t, agent, "signed")
	s.shows("signed", "get", "nodes", "-o", "name")
	s.k("wait", "node/signed", "--for=condition=Ready", "--timeout=60s")
	ready := time.Now()
	ca := filepath.Join(cluster.Dir, "coordinator", "pki", "ca.crt")
	harness.Eventually(t, "a certificate of the cluster", func() (bool, string) {
		out, err := cluster.Run("curl", "-sS", "--cacert", ca, "https://"+agent.Address+":10250/healthz")
		return err == nil && strings.TrimSpace(out) == "Unauthorized", fmt.Sprint(out, err)
	})
	t.Logf("the certificate is there %v after Ready", time.Since(ready).Round(10*time.Millisecond))
	s.apply(fmt.Sprintf(onNode, "there", "there", "signed", "localhost/busybox:1", `command: [sh, -c, "echo hello; sleep 9999"]`))
	s.ready("there")
	harness.Eventually(t, "logs", func() (bool, string) {
		out, err := cluster.Kubectl("", "-n", s.ns, "logs", "there")
		return err == nil && out == "hello\n", fmt.Sprint(out, err)
	})
	if out := s.exec("there", "echo", "inside"); strings.TrimSpace(out) != "inside" {
		t.Errorf("exec: %q", out)
	}

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	asNode := func(name, subject string, names []string, ips ...net.IP) error {
		t.Helper()
		request, err := cert.MakeCSR(key, &pkix.Name{CommonName: subject, Organization: []string{"system:nodes"}},
			names, ips)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = cluster.Kubectl("", "delete", "csr", name, "--ignore-not-found") })
		_, err = cluster.Kubectl(fmt.Sprintf(signingRequest, name, base64.StdEncoding.EncodeToString(request)),
			"--kubeconfig", filepath.Join(agent.Dir, "kubeconfig"), "create", "-f", "-")
		return err
	}
	if err := asNode("of-another", "system:node:node1", []string{"node1"}); err == nil ||
		!strings.Contains(err.Error(), "can only create a node CSR with CN=system:node:signed") {
		t.Errorf("another node's name: %v", err)
	}
	for name, address := range map[string]string{"own": agent.Address, "of-the-neighbour": cluster.Address,
		"of-the-api": "10.96.0.1"} {
		if err := asNode(name, "system:node:signed", nil, net.ParseIP(address)); err != nil {
			t.Fatal(err)
		}
	}
	cluster.Must(t, "wait", "csr/own", "--for=condition=Approved", "--timeout=60s")
	for _, name := range []string{"of-the-neighbour", "of-the-api"} {
		if out := cluster.Must(t, "get", "csr", name, "-o", "jsonpath={.status}"); out != "{}" && out != "" {
			t.Errorf("a certificate %s: %s", name, out)
		}
	}
}

// TestKubeletEntry: who may only read of nodes cannot exec by a WebSocket, which
// begins with GET: neither at the agent nor through the API server, whose own right
// the agent sees then.
func TestKubeletEntry(t *testing.T) {
	s := newSpace(t)
	s.apply(fmt.Sprintf(onNode, "victim", "victim", "node1", "localhost/busybox:1", `command: [sleep, "9999"]`))
	s.ready("victim")
	s.k("create", "serviceaccount", "reader")
	ns := s.ns
	role := "reader-" + ns
	cluster.Must(t, "create", "clusterrole", role, "--verb=get", "--resource=nodes/proxy")
	cluster.Must(t, "create", "clusterrolebinding", role, "--clusterrole="+role, "--serviceaccount="+ns+":reader")
	t.Cleanup(func() {
		cluster.Must(t, "delete", "clusterrolebinding", role)
		cluster.Must(t, "delete", "clusterrole", role)
	})
	token := strings.TrimSpace(s.k("create", "token", "reader"))
	get := func(url string, more ...string) string {
		t.Helper()
		args := append([]string{"-sk", "--http1.1", "--max-time", "20", "-H", "Authorization: Bearer " + token}, more...)
		out, err := cluster.Run("curl", append(args, url)...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	for base, refusal := range map[string]string{
		"https://" + cluster.Address + ":10250":                         "verb=create",
		"https://" + cluster.Address + ":6443/api/v1/nodes/node1/proxy": `nodes \"node1\" is forbidden`,
	} {
		harness.Eventually(t, "the reader reads", func() (bool, string) {
			out := get(base + "/pods")
			return strings.HasPrefix(out, `{"kind":"PodList"`), out[:min(len(out), 200)]
		})
		out := get(base+"/exec/"+ns+"/victim/c?command=id&output=1", "-H", "Connection: Upgrade", "-H", "Upgrade: websocket",
			"-H", "Sec-WebSocket-Version: 13", "-H", "Sec-WebSocket-Key: c2hvYWwtdGVzdC1rZXktMQ==", "-H", "Sec-WebSocket-Protocol: v4.channel.k8s.io")
		if !strings.Contains(out, "Forbidden") || !strings.Contains(out, refusal) {
			t.Errorf("exec by GET at %s: %q", base, out)
		}
	}
}
