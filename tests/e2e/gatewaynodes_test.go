package e2e

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/shoal-project/shoal/agent/gatewayfeed"
	"github.com/shoal-project/shoal/tests/harness"
)

const edgeLabel = "node-restriction.kubernetes.io/edge"

// edgeObjects are a Gateway with TLS at some nodes, and one without parameters; edgePool gives
// their Services addresses.
const edgeObjects = `
apiVersion: v1
kind: ConfigMap
metadata: {name: edge}
data: {nodeSelector: node-restriction.kubernetes.io/edge}
---
apiVersion: v1
kind: Secret
metadata: {name: cert}
type: kubernetes.io/tls
data: {tls.crt: %s, tls.key: %s}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge}
spec:
  gatewayClassName: e2e-edge
  infrastructure: {parametersRef: {group: "", kind: ConfigMap, name: edge}}
  listeners: [{name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: cert}]}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: plain}
spec:
  gatewayClassName: e2e-edge
  listeners: [{name: http, port: 80, protocol: HTTP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: hello}
spec:
  parentRefs: [{name: edge}, {name: plain}]
  rules: [{backendRefs: [{name: hello, port: 80}]}]
`

const (
	edgeIngress = `
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: e2e-edge}
spec:
  controller: shoal-project.io/ingress
  parameters: {kind: ConfigMap, name: edge, scope: Namespace, namespace: %s}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web}
spec: {ingressClassName: e2e-edge, defaultBackend: {service: {name: hello, port: {number: 80}}}}
`
	edgeClass = `
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: e2e-edge}
spec: {controllerName: shoal-project.io/gateway}
`
	edgePool = `
apiVersion: v1
kind: ConfigMap
metadata: {name: shoal-load-balancer, namespace: kube-system}
data: {edge: "addresses: [10.99.0.120-10.99.0.125]"}
`
)

// asker asks again and again, each time by a new connection, and keeps what went wrong.
type asker struct {
	stop chan struct{}
	wg   sync.WaitGroup

	mu     sync.Mutex
	asked  int
	failed []string
}

func newAsker(netns, url, host string, trusted *x509.CertPool) *asker {
	a := &asker{stop: make(chan struct{})}
	begin := time.Now()
	a.wg.Go(func() {
		for {
			select {
			case <-a.stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
			got := askFrom(netns, url, host, trusted)
			a.mu.Lock()
			a.asked++
			if !strings.HasPrefix(got, "200 Hello") {
				a.failed = append(a.failed, fmt.Sprint(time.Since(begin).Round(10*time.Millisecond), " ", got))
			}
			a.mu.Unlock()
		}
	})
	return a
}

func (a *asker) end() (asked int, failed []string) {
	select {
	case <-a.stop:
	default:
		close(a.stop)
	}
	a.wg.Wait()
	return a.asked, a.failed
}

// TestGatewayNodes: a Gateway with parameters answers, has endpoints and an address, and its
// certificate's key is known and kept, on the nodes that they select and no others; one without
// is everywhere. A label that comes or goes changes that in seconds, and no request is lost.
func TestGatewayNodes(t *testing.T) {
	s := newSpace(t)
	gatewayAPI(t)
	agent, err := cluster.Join("node2")
	if err != nil {
		t.Fatal(err)
	}
	defer leave(t, agent, "node2")
	s.shows("node2", "get", "nodes", "-o", "name")
	s.k("wait", "node/node2", "--for=condition=Ready", "--timeout=30s")
	type machine struct{ netns, address, dir, kubeconfig string }
	machines := map[string]machine{
		"node1": {cluster.NetNS, cluster.Address, filepath.Join(cluster.Dir, "agent"),
			filepath.Join(cluster.Dir, "agent", "kubeconfig")},
		"node2": {agent.NetNS, agent.Address, filepath.Join(agent.Dir, "agent"),
			filepath.Join(agent.Dir, "kubeconfig")},
	}
	cluster.Must(t, "label", "node", "node2", edgeLabel+"=")
	t.Cleanup(func() { cluster.Must(t, "label", "node", "node1", edgeLabel+"-") })
	s.apply(gatewayPods)
	s.k("rollout", "status", "deployment/hello", "--timeout=60s")
	cluster.MustWith(t, edgePool, "apply", "-f", "-")
	t.Cleanup(func() { cluster.Must(t, "delete", "-n", "kube-system", "configmap", "shoal-load-balancer") })
	chain, key, pool := selfSigned(t, "foo.example.com")
	b64 := base64.StdEncoding.EncodeToString
	s.apply(fmt.Sprintf(edgeObjects, b64(chain), b64(key)))
	cluster.MustWith(t, edgeClass, "apply", "-f", "-")
	t.Cleanup(func() { cluster.Must(t, "delete", "gatewayclass", "e2e-edge") })
	s.k("wait", "gateway/edge", "gateway/plain", "--for=condition=Programmed", "--timeout=60s")
	target := func(gateway string) string {
		return s.k("get", "service", "gateway-"+gateway, "-o", "jsonpath={.spec.ports[0].targetPort}")
	}
	edge, plain := target("edge"), target("plain")
	answers := func(node string, want bool) {
		t.Helper()
		url := "https://" + machines[node].address + ":" + edge
		harness.Eventually(t, fmt.Sprintf("%s answers for the edge: %t", node, want), func() (bool, string) {
			got := ask(url, "foo.example.com", pool)
			if want {
				return strings.HasPrefix(got, "200 Hello"), got
			}
			return strings.Contains(got, "connection refused"), got
		})
		s.answers("http://"+machines[node].address+":"+plain, "foo.example.com", "200 Hello", nil)
	}
	// keeps tells how many ports are in a node's checkpoint.
	keeps := func(node string, want int) {
		t.Helper()
		harness.Eventually(t, fmt.Sprintf("%s keeps %d ports", node, want), func() (bool, string) {
			list, err := filepath.Glob(filepath.Join(machines[node].dir, "checkpoint", "gateways", "*.json"))
			return len(list) == want, fmt.Sprint(list, err)
		})
	}
	// knows asks with the node's own credentials.
	knows := func(node string, want bool) {
		t.Helper()
		config, err := harness.RESTConfig(machines[node].netns, machines[node].kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		c, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		stream, err := c.Discovery().RESTClient().Get().AbsPath(gatewayfeed.Path).Stream(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer stream.Close()
		u, err := gatewayfeed.NewReader(stream).Read()
		if err != nil || u.Config == nil {
			t.Fatal(u, err)
		}
		has := false
		for _, c := range u.Config.Certificates {
			has = has || c.Key == string(key)
		}
		if has != want {
			t.Errorf("%s is told the key: %t", node, has)
		}
		_, err = cluster.Kubectl("", "--kubeconfig", machines[node].kubeconfig, "-n", s.ns, "get", "secret", "cert")
		if err == nil || !strings.Contains(err.Error(), "Forbidden") {
			t.Errorf("%s asks for the Secret: %v", node, err)
		}
	}
	endpoints := []string{"get", "endpointslices", "-l", "kubernetes.io/service-name=gateway-edge", "-o",
		"jsonpath={.items[*].endpoints[*].nodeName}"}
	answers("node2", true)
	answers("node1", false)
	s.until("node2", endpoints...)
	keeps("node1", 1)
	keeps("node2", 2)
	knows("node1", false)
	knows("node2", true)
	at := s.k("get", "gateway", "edge", "-o", "jsonpath={.status.addresses[0].value}")
	outside, _, err := cluster.Outside()
	if err != nil {
		t.Fatal(err)
	}
	watch := newARPWatch(t, outside, netip.MustParseAddr(at))
	if got := watch.settled(t); got != macOf(t, agent.NetNS) {
		t.Errorf("%s is announced by %s", at, got)
	}
	harness.Eventually(t, "the address answers", func() (bool, string) {
		got := askFrom(outside, "https://"+at, "foo.example.com", pool)
		return strings.HasPrefix(got, "200 Hello"), got
	})

	// So are the Ingresses of a class with parameters, on the nodes' own ports and behind its Service.
	s.apply(fmt.Sprintf(edgeIngress, s.ns))
	public := func(node string) string { return "http://" + machines[node].address + "/" }
	s.answers(public("node2"), "foo.example.com", "200 Hello", nil)
	if got := ask(public("node1"), "foo.example.com", nil); !strings.Contains(got, "connection refused") {
		t.Errorf("node1 answers for the Ingress: %s", got)
	}
	s.until("node2", "-n", "kube-system", "get", "endpointslices", "-l",
		"kubernetes.io/service-name=shoal-ingress-e2e-edge", "-o", "jsonpath={.items[*].endpoints[*].nodeName}")
	s.k("delete", "ingress", "web")
	cluster.Must(t, "delete", "ingressclass", "e2e-edge")
	s.until("", "-n", "kube-system", "get", "service", "shoal-ingress-e2e-edge", "--ignore-not-found", "-o", "name")
	harness.Eventually(t, "node2 answers for no Ingress", func() (bool, string) {
		got := ask(public("node2"), "foo.example.com", nil)
		return strings.Contains(got, "connection refused"), got
	})

	// Both nodes' clients ask all the time, by the cluster IP.
	url := "https://" + s.k("get", "service", "gateway-edge", "-o", "jsonpath={.spec.clusterIP}")
	s.answers(url, "foo.example.com", "200 Hello", pool)
	askers := map[string]*asker{}
	for node, m := range machines {
		askers[node] = newAsker(m.netns, url, "foo.example.com", pool)
		defer askers[node].end()
	}
	time.Sleep(time.Second)
	began := time.Now()
	cluster.Must(t, "label", "node", "node1", edgeLabel+"=")
	answers("node1", true)
	t.Logf("a node with a new label answers after %v", time.Since(began).Round(10*time.Millisecond))
	s.until("node1 node2", endpoints...)
	t.Logf("and is an endpoint after %v", time.Since(began).Round(10*time.Millisecond))
	keeps("node1", 2)
	knows("node1", true)
	time.Sleep(time.Second)
	began = time.Now()
	cluster.Must(t, "label", "node", "node2", edgeLabel+"-")
	s.until("node1", endpoints...)
	answers("node2", false)
	keeps("node2", 1)
	t.Logf("a node without its label has no port and no key after %v", time.Since(began).Round(10*time.Millisecond))
	knows("node2", false)
	time.Sleep(time.Second)
	for node, a := range askers {
		if asked, failed := a.end(); asked < 20 || len(failed) > 0 {
			t.Errorf("of %d requests from %s failed %d: %q", asked, node, len(failed), failed)
		}
	}
	harness.Eventually(t, "the address is the other node's", func() (bool, string) {
		got := watch.owner()
		return got == macOf(t, cluster.NetNS), got
	})

	// Parameters that are not there leave nobody who answers, and say so.
	s.k("delete", "configmap", "edge")
	s.field("gateway/edge", `.status.conditions[?(@.type=="Accepted")].reason`, "InvalidParameters")
	answers("node1", false)
	keeps("node1", 1)
	s.until("", endpoints...)
	if now := s.k("get", "service", "gateway-edge", "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}"); now != at {
		t.Errorf("the Gateway's address is %s, not %s", now, at)
	}
}
