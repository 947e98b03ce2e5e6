package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/shoal-project/shoal/coordinator/pki"
	"github.com/shoal-project/shoal/tests/harness"
)

// authority makes a CA of the test's own and returns it with its PEM.
func authority(t *testing.T) (*pki.Authority, []byte) {
	t.Helper()
	dir := pki.Dir(filepath.Join(t.TempDir(), "pki"))
	if err := dir.Ensure(pki.Cluster{}, time.Now()); err != nil {
		t.Fatal(err)
	}
	ca, err := dir.CA()
	if err != nil {
		t.Fatal(err)
	}
	return ca, ca.PEM
}

// TestUDP: a UDP server answers at its Service's name, address and NodePort,
// and one client's flow moves to the next pod when its pod goes.
func TestUDP(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.apply(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: udp}
spec:
  selector: {matchLabels: {app: udp}}
  template:
    metadata: {labels: {app: udp}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: c, image: "localhost/testserver:1", args: [udp], ports: [{containerPort: 5353, protocol: UDP}]}]
---
apiVersion: v1
kind: Service
metadata: {name: udp}
spec: {type: NodePort, selector: {app: udp}, ports: [{name: dns, protocol: UDP, port: 53, targetPort: 5353}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec: {terminationGracePeriodSeconds: 0, containers: [{name: c, image: "localhost/testserver:1", args: [udp]}]}
`)
	s.k("rollout", "status", "deployment/udp", "--timeout=60s")
	s.ready("client")
	pod := func() string {
		return strings.TrimSpace(s.k("get", "pods", "-l", "app=udp", "--field-selector=status.phase=Running", "-o", "jsonpath={.items[0].metadata.name}"))
	}
	first := pod()
	address := s.k("get", "service", "udp", "-o", "jsonpath={.spec.clusterIP}")
	port := s.k("get", "service", "udp", "-o", "jsonpath={.spec.ports[0].nodePort}")
	for _, at := range []string{"udp:53", address + ":53", cluster.Address + ":" + port} {
		s.shows(first+" asked", "exec", "client", "--", "/testserver", "ask", at)
	}
	for _, at := range []string{address + ":53", cluster.Address + ":" + port, "127.0.0.1:" + port} {
		if got, err := askUDP(t, at)(); err != nil || !strings.HasPrefix(got, first) {
			if at == "127.0.0.1:"+port { // nftables has no NodePorts on loopback, as kube-proxy's nftables mode
				continue
			}
			t.Errorf("the node asks %s: %q %v", at, got, err)
		}
	}
	flow := askUDP(t, address+":53")
	if got, err := flow(); err != nil || !strings.HasPrefix(got, first) {
		t.Fatalf("first answer: %q %v", got, err)
	}
	s.k("delete", "pod", first, "--now")
	s.k("rollout", "status", "deployment/udp", "--timeout=60s")
	harness.Eventually(t, "the flow reaches the next pod", func() (bool, string) {
		got, err := flow()
		return err == nil && got != "" && !strings.HasPrefix(got, first), fmt.Sprint(got, err)
	})
}

// askUDP opens one socket on the first machine; the function asks by it.
func askUDP(t *testing.T, address string) func() (string, error) {
	t.Helper()
	var conn net.Conn
	if err := harness.Inside(cluster.NetNS, func() (err error) {
		conn, err = net.Dial("udp", address)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return func() (string, error) {
		if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
			return "", err
		}
		if _, err := conn.Write([]byte("x")); err != nil {
			return "", err
		}
		buf := make([]byte, 1500)
		n, err := conn.Read(buf)
		return string(buf[:n]), err
	}
}

// secured is the test server behind a Service, on a node if one is named.
const secured = `
apiVersion: v1
kind: Secret
metadata: {name: %[1]s}
data: {tls.crt: %[2]s, tls.key: %[3]s, front-proxy-ca.crt: %[4]s}
---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {app: %[1]s}}
spec:
  nodeName: %[5]q
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: "localhost/testserver:1", args: [%[1]s], readinessProbe: {tcpSocket: {port: 8443}, periodSeconds: 1},
     volumeMounts: [{name: certs, mountPath: /certs}]}
  volumes: [{name: certs, secret: {secretName: %[1]s}}]
---
apiVersion: v1
kind: Service
metadata: {name: %[1]s}
spec: {selector: {app: %[1]s}, ports: [{port: 443, targetPort: 8443}]}
`

// securedBy is the test server with a certificate for its Service in a namespace.
func securedBy(t *testing.T, ca *pki.Authority, mode, ns, node string, front []byte) string {
	t.Helper()
	host := mode + "." + ns + ".svc"
	cert, key, err := ca.Issue(pki.Spec{User: host, Names: []string{host}, Server: true}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Sprintf(secured, mode, b64(cert), b64(key), b64(front), node)
}

// secure starts the test server with a certificate for its Service.
func (s space) secure(mode, extra string) (ca []byte) {
	s.t.Helper()
	authority, ca := authority(s.t)
	s.apply(securedBy(s.t, authority, mode, s.ns, "", []byte(extra)))
	s.ready(mode)
	return ca
}

// TestWebhookInPod: a mutating and a validating webhook, served by a pod
// behind a Service; when the pod is gone the failure policy decides.
func TestWebhookInPod(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	ca := base64.StdEncoding.EncodeToString(s.secure("webhook", ""))
	hook := func(kind, path, policy string) string {
		return fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: %[1]sWebhookConfiguration
metadata: {name: %[2]s}
webhooks:
- name: test.example.com
  clientConfig: {caBundle: %[3]s, service: {namespace: %[2]s, name: webhook, path: %[4]s}}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [configmaps]}]
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[2]s}}
  sideEffects: None
  timeoutSeconds: 5
  failurePolicy: %[5]s
  admissionReviewVersions: [v1]
---
`, kind, s.ns, ca, path, policy)
	}
	t.Cleanup(func() {
		_, _ = cluster.Kubectl("", "delete", "mutatingwebhookconfiguration,validatingwebhookconfiguration", s.ns)
	})
	s.apply(hook("Mutating", "/mutate", "Ignore") + hook("Validating", "/validate", "Fail"))
	made := 0
	harness.Eventually(t, "webhooks are called", func() (bool, string) {
		made++
		name := fmt.Sprint("c", made)
		out, err := cluster.Kubectl("", s.args([]string{"create", "configmap", name})...)
		if err != nil {
			return false, out + err.Error()
		}
		seen, err := cluster.Kubectl("",
			s.args([]string{"get", "configmap", name, "-o", "jsonpath={.metadata.labels.seen}"})...)
		return err == nil && seen == "yes", seen
	})
	s.refusedWith(`{apiVersion: v1, kind: ConfigMap, metadata: {name: refused, labels: {refuse: "1"}}}`,
		`admission webhook "test.example.com" denied the request: refused by the webhook in a pod`, "apply", "-f", "-")
	s.k("delete", "pod", "webhook", "--now")
	s.refused(`failed calling webhook "test.example.com"`, "create", "configmap", "late")
	s.k("delete", "validatingwebhookconfiguration", s.ns)
	harness.Eventually(t, "the mutating webhook is ignored", func() (bool, string) {
		made++
		out, err := cluster.Kubectl("", s.args([]string{"create", "configmap", fmt.Sprint("c", made)})...)
		return err == nil, fmt.Sprint(out, err)
	})
}

// fishes is the API of the test server in a namespace.
const fishes = `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.fish.example.com}
spec:
  group: fish.example.com
  version: v1
  groupPriorityMinimum: 1000
  versionPriority: 10
  service: {namespace: %s, name: api}
  caBundle: %s
`

// TestAggregatedAPI: a pod serves an API group of its own, which shows in
// discovery and by kubectl with the caller's name; when the pod is gone the
// APIService says so and the rest of the API goes on.
func TestAggregatedAPI(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	front, err := os.ReadFile(filepath.Join(cluster.Dir, "coordinator", "pki", "front-proxy-ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	ca := s.secure("api", string(front))
	t.Cleanup(func() { _, _ = cluster.Kubectl("", "delete", "apiservice", "v1.fish.example.com") })
	s.apply(fmt.Sprintf(fishes, s.ns, base64.StdEncoding.EncodeToString(ca)))
	s.k("wait", "apiservice/v1.fish.example.com", "--for=condition=Available", "--timeout=60s")
	s.shows("fishes", "api-resources", "--api-group=fish.example.com")
	s.shows("tuna", "get", "fishes")
	s.says("shoal-admin shoal:cluster-admins", "get", "fish", "cod", "-o", "jsonpath={.caller} {.groups[0]}")
	s.says("cod", "get", "fish", "cod", "--as=somebody", "--as-group=system:masters", "-o", "name")
	s.refused(`fishes.fish.example.com is forbidden: User "somebody" cannot list resource "fishes"`, "get", "fishes", "--as=somebody")
	s.k("delete", "pod", "api", "--now")
	s.field("apiservice/v1.fish.example.com", `.status.conditions[?(@.type=="Available")].status`, "False")
	s.refused("503", "get", "--raw", "/apis/fish.example.com/v1/namespaces/"+s.ns+"/fishes", "-v=8")
	s.k("get", "configmaps")
	s.k("delete", "apiservice", "v1.fish.example.com")
}

// TestRegistryMirror: an agent takes images of one registry from another, as
// hosts.toml files below its registry directory tell, with a CA of their own.
func TestRegistryMirror(t *testing.T) {
	s := newSpace(t)
	ca, caPEM := authority(t)
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	cert, key, err := ca.Issue(pki.Spec{User: "mirror", IPs: []net.IP{net.ParseIP(cluster.Address)}, Server: true},
		time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(images)
	server.Listener.Close()
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	if err := harness.Inside(cluster.NetNS, func() (err error) {
		server.Listener, err = net.Listen("tcp", cluster.Address+":0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	address := server.Listener.Addr().String()
	pushTLS(t, address+"/lib/busybox:1", caPEM)

	agent, err := cluster.Join("node3")
	if err != nil {
		t.Fatal(err)
	}
	defer leave(t, agent, "node3")
	certs := filepath.Join(agent.Dir, "certs.d")
	writeFile(t, filepath.Join(certs, "ca.crt"), string(caPEM))
	mirror := fmt.Sprintf(
		"server = \"https://%[1]s\"\n[host.\"https://%[1]s\"]\ncapabilities = [\"pull\", \"resolve\"]\n", address)
	writeFile(t, filepath.Join(certs, "registry.example.com", "hosts.toml"),
		mirror+fmt.Sprintf("ca = %q\n", filepath.Join(certs, "ca.crt")))
	writeFile(t, filepath.Join(certs, "unknown.example.com", "hosts.toml"), mirror)
	writeFile(t, filepath.Join(certs, "careless.example.com", "hosts.toml"), mirror+"skip_verify = true\n")
	for _, host := range []string{"registry", "unknown", "careless"} {
		s.apply(fmt.Sprintf(onNode, host, host, "node3", host+".example.com/lib/busybox:1", `command: [sleep, "9999"]`))
	}
	s.ready("registry", "careless")
	s.says("example.com/lib/busybox@sha256:", "get", "pod", "registry", "-o", "jsonpath={.status.containerStatuses[0].imageID}")
	s.shows("certificate signed by unknown authority", "get", "events", "--field-selector=involvedObject.name=unknown")
}

func pushTLS(t *testing.T, reference string, caPEM []byte) {
	t.Helper()
	ref, err := name.ParseReference(reference)
	if err != nil {
		t.Fatal(err)
	}
	config, err := cluster.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(caPEM)
	transport := &http.Transport{DialContext: config.Dial,
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	defer transport.CloseIdleConnections()
	if err := remote.Write(ref, load(t, "busybox"), remote.WithTransport(transport)); err != nil {
		t.Fatal(err)
	}
}
