package e2e

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-project/shoal/tests/harness"
)

const gatewayObjects = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web}
spec:
  gatewayClassName: e2e-shoal
  listeners: [{name: http, port: 80, protocol: HTTP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: hello}
spec:
  parentRefs: [{name: web}]
  hostnames: [hello.example.com]
  rules:
  - matches: [{path: {type: PathPrefix, value: /hello}}]
    backendRefs: [{name: hello, port: 80}]
  - matches: [{path: {type: Exact, value: /old}}]
    filters: [{type: RequestRedirect, requestRedirect: {path: {type: ReplaceFullPath, replaceFullPath: /hello},
	statusCode: 301}}]
`

// ingressObjects are the shapes of upstream's Ingress conformance: host rules, path rules,
// a default, TLS.
const ingressObjects = `
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: e2e-shoal}
spec: {controller: shoal-project.io/ingress}
---
apiVersion: v1
kind: Secret
metadata: {name: cert}
type: kubernetes.io/tls
data: {tls.crt: %s, tls.key: %s}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web}
spec:
  ingressClassName: e2e-shoal
  tls: [{hosts: [foo.example.com], secretName: cert}]
  defaultBackend: {service: {name: other, port: {number: 80}}}
  rules:
  - host: foo.example.com
    http:
      paths:
      - {path: /exact, pathType: Exact, backend: {service: {name: hello, port: {number: 80}}}}
      - {path: /aaa/bbb, pathType: Prefix, backend: {service: {name: hello, port: {name: web}}}}
      - {path: /aaa, pathType: Prefix, backend: {service: {name: other, port: {number: 80}}}}
  - host: "*.wild.example.com"
    http: {paths: [{path: /, pathType: ImplementationSpecific, backend: {service: {name: hello, port: {number: 80}}}}]}
`

const gatewayPods = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: hello}
spec:
  replicas: 2
  selector: {matchLabels: {app: hello}}
  template:
    metadata: {labels: {app: hello}}
    spec: {containers: [{name: c, image: localhost/hello:1, readinessProbe: {httpGet: {port: 8080, path: /},
	periodSeconds: 1}}]}
---
apiVersion: v1
kind: Service
metadata: {name: hello}
spec: {selector: {app: hello}, ports: [{name: web, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: other, labels: {app: other}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c,
	"mkdir -p /w/aaa /w/exact; echo other >/w/index.html; cp /w/index.html /w/aaa; cp /w/index.html /w/exact; exec httpd -f -p 8080 -h /w"]
---
apiVersion: v1
kind: Service
metadata: {name: other}
spec: {selector: {app: other}, ports: [{port: 80, targetPort: 8080}]}
`

// ask asks for a page where the first node is, and returns its code with the body or the
// place that it leads to.
func ask(url, host string, trusted *x509.CertPool) string {
	return askFrom(cluster.NetNS, url, host, trusted)
}

// askFrom asks from another host.
func askFrom(netns, url, host string, trusted *x509.CertPool) string {
	var out string
	err := harness.Inside(netns, func() error {
		base, err := addressOf(url)
		if err != nil {
			return err
		}
		c, err := net.DialTimeout("tcp", base, 5*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		if trusted != nil {
			t := tls.Client(c, &tls.Config{ServerName: host, RootCAs: trusted})
			if err := t.Handshake(); err != nil {
				return err
			}
			c = t
		}
		client := http.Client{
			Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn,
				error) {
				return c, nil
			},
				DialTLSContext:    func(context.Context, string, string) (net.Conn, error) { return c, nil },
				DisableKeepAlives: true},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Timeout:       10 * time.Second,
		}
		r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		r.Host = host
		resp, err := client.Do(r)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		out = fmt.Sprint(resp.StatusCode, " ", resp.Header.Get("Location"), string(body))
		return err
	})
	if err != nil {
		return err.Error()
	}
	return out
}

func addressOf(raw string) (string, error) {
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, raw, nil)
	if err != nil {
		return "", err
	}
	port := r.URL.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[r.URL.Scheme]
	}
	return net.JoinHostPort(r.URL.Hostname(), port), nil
}

func (s space) answers(url, host, want string, trusted *x509.CertPool) {
	s.t.Helper()
	harness.Eventually(s.t, host+" at "+url+" answers "+want, func() (bool, string) {
		got := ask(url, host, trusted)
		return strings.HasPrefix(got, want), got
	})
}

// selfSigned is a certificate that vouches for itself.
func selfSigned(t *testing.T, name string) (chain, key []byte, pool *x509.CertPool) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{name}, IsCA: true,
		BasicConstraintsValid: true, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	data, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	chain = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(chain)
	return chain, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: data}), pool
}

// gatewayProxy is the proxy's process, 0 for none.
func gatewayProxy(t *testing.T) int {
	t.Helper()
	exes, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.Stat("/run/netns/" + cluster.NetNS)
	if err != nil {
		t.Fatal(err)
	}
	for _, exe := range exes {
		if target, err := os.Readlink(exe); err != nil || filepath.Base(target) != "shoal-gateway" {
			continue
		}
		dir := filepath.Dir(exe)
		if ns, err := os.Stat(filepath.Join(dir, "ns/net")); err == nil && os.SameFile(ns, want) {
			var pid int
			_, _ = fmt.Sscan(filepath.Base(dir), &pid)
			return pid
		}
	}
	return 0
}

// gatewayAPI has the API serve the Gateway API's kinds for the time of the test.
func gatewayAPI(t *testing.T) {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api").Output()
	if err != nil {
		t.Fatal(err)
	}
	definitions := filepath.Join(strings.TrimSpace(string(dir)), "config", "crd", "standard")
	cluster.Must(t, "apply", "--server-side", "-f", definitions)
	t.Cleanup(func() { cluster.Must(t, "delete", "-f", definitions, "--ignore-not-found") })
	cluster.Must(t, "wait", "--for=condition=Established", "crd", "gatewayclasses.gateway.networking.k8s.io",
		"--timeout=60s")
}

// TestGateways: nothing runs before a class asks; a Gateway answers by a process without
// root that outlives the agent, and comes back when it is killed; an Ingress answers on the
// node's ports, with TLS whose certificate is changed under it; nothing runs in the end.
func TestGateways(t *testing.T) {
	s := newSpace(t)
	if pid := gatewayProxy(t); pid != 0 {
		t.Fatalf("a proxy runs that nobody asked for: %d", pid)
	}
	gatewayAPI(t)
	s.apply(gatewayPods)
	s.k("rollout", "status", "deployment/hello", "--timeout=60s")
	s.ready("other")
	s.apply(gatewayObjects)
	cluster.MustWith(t, `{"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": {"name": "e2e-shoal"},
		"spec": {"controllerName": "shoal-project.io/gateway"}}`, "apply", "-f", "-")
	s.k("wait", "gateway/web", "--for=condition=Programmed", "--timeout=60s")
	s.field("httproute/hello", ".status.parents[0].conditions[?(@.type==\"Accepted\")].status", "True")
	at := "http://" + s.k("get", "gateway", "web", "-o", "jsonpath={.status.addresses[0].value}")
	s.answers(at+"/hello/you", "hello.example.com", "200 Hello", nil)
	s.answers(at+"/hello", "other.example.com", "404", nil)
	s.answers(at+"/helloyou", "hello.example.com", "404", nil)
	s.answers(at+"/old", "hello.example.com", "301 http://hello.example.com/hello", nil)

	pid := gatewayProxy(t)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "NoNewPrivs:\t1"} {
		if !bytes.Contains(status, []byte(want)) {
			t.Errorf("the proxy has not %q:\n%s", want, status)
		}
	}
	if bytes.Contains(status, []byte("Uid:\t0")) {
		t.Errorf("the proxy runs as root:\n%s", status)
	}
	cluster.Kill(t, "agent")
	if got := ask(at+"/hello", "hello.example.com", nil); !strings.HasPrefix(got, "200") {
		t.Errorf("while the agent begins: %s", got)
	}
	s.k("patch", "httproute", "hello", "--type=json", "-p",
		`[{"op": "replace", "path": "/spec/hostnames/0", "value": "new.example.com"}]`)
	s.answers(at+"/hello", "new.example.com", "200", nil)
	if now := gatewayProxy(t); now != pid {
		t.Errorf("the agent's end was the proxy's: %d, then %d", pid, now)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.answers(at+"/hello", "new.example.com", "200", nil)

	s.ingress()

	s.k("delete", "gateway", "web")
	cluster.Must(t, "delete", "gatewayclass", "e2e-shoal")
	cluster.Must(t, "delete", "ingressclass", "e2e-shoal")
	harness.Eventually(t, "the proxy ends", func() (bool, string) {
		pid := gatewayProxy(t)
		return pid == 0, fmt.Sprint(pid)
	})
	s.until("", "-n", "kube-system", "get", "service", "shoal-ingress", "--ignore-not-found", "-o", "name")
}

func (s space) ingress() {
	chain, key, pool := selfSigned(s.t, "foo.example.com")
	b64 := base64.StdEncoding.EncodeToString
	s.apply(fmt.Sprintf(ingressObjects, b64(chain), b64(key)))
	node := "http://" + cluster.Address
	s.answers(node+"/exact", "foo.example.com", "200 Hello", nil)
	s.answers(node+"/exact/", "foo.example.com", "200 other", nil) // the default
	s.answers(node+"/aaa/bbb/ccc", "foo.example.com", "200 Hello", nil)
	s.answers(node+"/aaa/", "foo.example.com", "200 other", nil)
	s.answers(node+"/", "one.wild.example.com", "200 Hello", nil)
	s.answers(node+"/", "two.one.wild.example.com", "200 other", nil) // one label only
	s.answers(node+"/", "none.example.com", "200 other", nil)
	s.shows(cluster.Address, "get", "ingress", "web")
	secure := "https://" + cluster.Address
	s.answers(secure+"/exact", "foo.example.com", "200 Hello", pool)
	// Another certificate counts without a restart, and the one before does not.
	chain, key, next := selfSigned(s.t, "foo.example.com")
	s.k("patch", "secret", "cert", "-p", fmt.Sprintf(`{"data": {"tls.crt": %q, "tls.key": %q}}`, b64(chain), b64(key)))
	s.answers(secure+"/exact", "foo.example.com", "200 Hello", next)
	if got := ask(secure+"/exact", "foo.example.com", pool); strings.HasPrefix(got, "200") {
		s.t.Errorf("the old certificate is still shown: %s", got)
	}
}

// TestGatewaysRebootCutOff: after a reboot without a coordinator a Gateway and an Ingress with
// TLS answer again, from what the node has kept; no key of theirs is on its disk in the clear.
func TestGatewaysRebootCutOff(t *testing.T) {
	s := newSpace(t)
	gatewayAPI(t)
	s.apply(gatewayPods)
	s.k("rollout", "status", "deployment/hello", "--timeout=60s")
	s.ready("other")
	s.apply(gatewayObjects)
	chain, key, pool := selfSigned(t, "foo.example.com")
	b64 := base64.StdEncoding.EncodeToString
	s.apply(fmt.Sprintf(ingressObjects, b64(chain), b64(key)))
	cluster.MustWith(t, `{"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": {"name": "e2e-shoal"},
		"spec": {"controllerName": "shoal-project.io/gateway"}}`, "apply", "-f", "-")
	t.Cleanup(func() {
		cluster.Must(t, "delete", "gatewayclass", "e2e-shoal")
		cluster.Must(t, "delete", "ingressclass", "e2e-shoal")
	})
	s.k("wait", "gateway/web", "--for=condition=Programmed", "--timeout=60s")
	at := "http://" + s.k("get", "gateway", "web", "-o", "jsonpath={.status.addresses[0].value}")
	secure := "https://" + cluster.Address
	s.answers(at+"/hello/you", "hello.example.com", "200 Hello", nil)
	s.answers(secure+"/exact", "foo.example.com", "200 Hello", pool)
	checkpoint := filepath.Join(cluster.Dir, "agent", "checkpoint")
	harness.Eventually(t, "the ports are on the disk", func() (bool, string) {
		list, err := filepath.Glob(filepath.Join(checkpoint, "gateways", "*.json"))
		// One of the Gateway, two of Ingresses on nodes, and two of their Service.
		return len(list) == 5, fmt.Sprint(list, err)
	})
	harness.Eventually(t, "so is where the Gateway's Service leads", func() (bool, string) {
		data, err := os.ReadFile(filepath.Join(checkpoint, "services.json")) // a power cut may take 0.2 s of it
		slice := fmt.Sprintf(`"name":"gateway-web-ipv4-0","namespace":%q`, s.ns)
		return bytes.Contains(data, []byte(slice)), fmt.Sprint(err)
	})
	err := filepath.WalkDir(checkpoint, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, bytes.TrimSpace(key)[64:128]) || bytes.Contains(data, []byte("PRIVATE KEY")) {
			t.Errorf("%s has a key in the clear", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	proxy := gatewayProxy(t)
	reboot(t)
	if proxy != 0 {
		kill(t, []int{proxy})
	}

	agent := cluster.Command("shoal-agent", "--config", filepath.Join(cluster.Dir, "agent.yaml"))
	var log bytes.Buffer
	agent.Stdout, agent.Stderr = &log, &log
	agent.WaitDelay = time.Second // the proxy has the agent's output too, and goes on
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceFunc(func() {
		_ = agent.Process.Signal(syscall.SIGKILL)
		_ = agent.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	defer stop()
	began := time.Now()
	s.answers(at+"/hello/you", "hello.example.com", "200 Hello", nil)
	s.answers(secure+"/exact", "foo.example.com", "200 Hello", pool)
	t.Logf("both answer %v after the agent's start", time.Since(began).Round(10*time.Millisecond))
	stop()
	if err := cluster.Up(); err != nil {
		t.Fatal(err)
	}
	s.k("patch", "httproute", "hello", "--type=json", "-p",
		`[{"op": "replace", "path": "/spec/hostnames/0", "value": "new.example.com"}]`)
	s.answers(at+"/hello", "new.example.com", "200", nil)
}
