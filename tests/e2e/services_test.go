package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shoal-project/shoal/tests/harness"
)

// gets waits until a pod gets a page that starts with want.
func (s space) gets(from, url, want string) {
	s.t.Helper()
	harness.Eventually(s.t, from+" gets "+url, func() (bool, string) {
		out, err := s.fetch(from, url)
		return err == nil && strings.HasPrefix(out, want), fmt.Sprint(out, err)
	})
}

// TestServices: affinity, hairpin, headless names, external names, endpoints
// by hand, a refusal without endpoints, UDP.
func TestServices(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.k("create", "deployment", "hello", "--image=localhost/hello:1", "--replicas=3")
	s.k("rollout", "status", "deployment/hello", "--timeout=60s")
	s.sleeper("client")
	s.apply(`
apiVersion: v1
kind: Service
metadata: {name: sticky}
spec: {selector: {app: hello}, sessionAffinity: ClientIP, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: spread}
spec: {selector: {app: hello}, ports: [{name: web, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: headless}
spec: {clusterIP: None, selector: {app: hello}, ports: [{name: web, port: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: empty}
spec: {selector: {app: none}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: elsewhere}
spec: {type: ExternalName, externalName: spread.` + s.ns + `.svc.cluster.local}
---
apiVersion: v1
kind: Service
metadata: {name: manual}
spec: {ports: [{port: 80, targetPort: 6443}]}
---
apiVersion: v1
kind: Endpoints
metadata: {name: manual}
subsets: [{addresses: [{ip: ` + cluster.Address + `}], ports: [{port: 6443}]}]
---
apiVersion: v1
kind: Service
metadata: {name: sliced}
spec: {ports: [{name: web, port: 80, targetPort: 8080}]}
`)
	ip := s.k("get", "pods", "-l", "app=hello", "-o", "jsonpath={.items[0].status.podIP}")
	s.apply(fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: sliced-1, labels: {kubernetes.io/service-name: sliced}}
addressType: IPv4
ports: [{name: web, port: 8080}]
endpoints: [{addresses: [%q], conditions: {ready: true}}]
`, ip))
	s.gets("client", "http://sticky", "Hello")
	s.gets("client", "http://spread", "Hello")
	seen := func(service string) map[string]bool {
		pages := map[string]bool{}
		out := s.k("exec", "client", "--", "sh", "-c", "for i in $(seq 30); do wget -qO- http://"+service+"; done")
		for line := range strings.Lines(out) {
			pages[line] = true
		}
		return pages
	}
	if n := len(seen("sticky")); n != 1 {
		t.Errorf("affinity: %d backends", n)
	}
	if n := len(seen("spread")); n != 3 {
		t.Errorf("spread: %d backends", n)
	}
	s.shows("3", "exec", "client", "--", "sh", "-c", "nslookup headless."+s.ns+".svc.cluster.local | grep -c 10.244")
	s.gets("client", "http://elsewhere", "Hello")
	s.gets("client", "http://sliced", "Hello")
	s.shows("Connection refused", "exec", "client", "--", "sh", "-c", "timeout 3 wget -qO- http://empty 2>&1; true")
	// HTTP to an HTTPS server
	s.shows("400", "exec", "client", "--", "sh", "-c", "timeout 3 wget -qO- http://manual 2>&1; true")
	s.shows("manual-", "get", "endpointslices", "-l", "endpointslice.kubernetes.io/managed-by=endpointslicemirroring-controller.k8s.io")

	// Hairpin: the only backend reaches itself by its Service.
	s.k("run", "self", "--image=localhost/busybox:1", "--restart=Never", "--", "sh", "-c", "mkdir /w; echo itself > /w/index.html; exec httpd -f -p 8080 -h /w")
	s.ready("self")
	s.k("expose", "pod", "self", "--name=mirror", "--port=80", "--target-port=8080")
	s.gets("self", "http://mirror", "itself")
	// A pod resolves what the cluster does not know as NXDOMAIN.
	s.shows("NXDOMAIN", "exec", "client", "--", "sh", "-c", "nslookup none."+s.ns+".svc.cluster.local 2>&1; true")
	// A backend that is deleted leaves.
	s.k("scale", "deployment/hello", "--replicas=1")
	s.shows("1", "exec", "client", "--", "sh", "-c", "nslookup headless."+s.ns+".svc.cluster.local | grep -c 10.244")
}
