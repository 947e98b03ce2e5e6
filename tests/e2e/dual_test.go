package e2e

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	agentconfig "github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/tests/harness"
)

// Ranges of a cluster with both families.
const (
	bothPods     = "10.244.0.0/16,fd00:10:244::/56"
	bothServices = "10.96.0.0/16,fd00:10:96::/112"
	bothDNS      = "10.96.0.10,fd00:10:96::a"
)

// families is a cluster with nodes of both address families.
type families struct {
	t *testing.T
	*harness.Cluster
}

// newFamilies prepares a machine with both families.
func newFamilies(t *testing.T, name string) (families, string) {
	t.Helper()
	c, err := harness.Prepare(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.Logs())
		}
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	v6, err := c.AddIPv6()
	if err != nil {
		t.Fatal(err)
	}
	return families{t, c}, v6
}

func (f families) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f families) k(args ...string) string {
	f.t.Helper()
	return strings.TrimSpace(f.Must(f.t, args...))
}

// is waits until a field of an object is what it is to be.
func (f families) is(want, object, path string) {
	f.t.Helper()
	harness.Eventually(f.t, object+" has "+path+" "+want, func() (bool, string) {
		out, err := f.Kubectl("", append([]string{"get", "-o", "jsonpath=" + path}, strings.Fields(object)...)...)
		return err == nil && strings.TrimSpace(out) == want, fmt.Sprint(out, err)
	})
}

// gets waits until a pod gets a page.
func (f families) gets(pod, url string) {
	f.t.Helper()
	harness.Eventually(f.t, pod+" gets "+url, func() (bool, string) {
		out, err := f.Kubectl("", "exec", pod, "--", "timeout", "5", "wget", "-qO-", url)
		return err == nil && strings.HasPrefix(out, "Hello"), fmt.Sprint(out, err)
	})
}

// blocked waits until a pod does not get a page.
func (f families) blocked(pod, url string) {
	f.t.Helper()
	harness.Eventually(f.t, pod+" does not get "+url, func() (bool, string) {
		out, err := f.Kubectl("", "exec", pod, "--", "timeout", "2", "wget", "-qO-", url)
		return err != nil && !strings.Contains(out, "Hello"), fmt.Sprint(out, err)
	})
}

// answers waits until the cluster's DNS at an address answers a pod with a word.
func (f families) answers(pod, server, kind, name, want string) {
	f.t.Helper()
	harness.Eventually(f.t, server+" answers "+name, func() (bool, string) {
		args := []string{"exec", pod, "--", "nslookup", "-type=" + kind, name, server}
		if kind == "ptr" { // which is what busybox asks of an address
			args = slices.Delete(args, 4, 5)
		}
		out, err := f.Kubectl("", args...)
		return err == nil && strings.Contains(out, want), fmt.Sprint(out, err)
	})
}

func at(ip, port string) string {
	if strings.Contains(ip, ":") {
		ip = "[" + ip + "]"
	}
	return "http://" + ip + ":" + port
}

// podsOnBoth are a server on each of two nodes, with the same host port, and a client on
// the first.
const podsOnBoth = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: c, image: "localhost/hello:1", ports: [{containerPort: 8080, hostPort: 8088}],
        readinessProbe: {httpGet: {port: 8080}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: client, labels: {app: client}}
spec:
  nodeName: node1
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sleep, "9999"]
    env:
    - {name: IPS, valueFrom: {fieldRef: {fieldPath: status.podIPs}}}
    - {name: HOSTS, valueFrom: {fieldRef: {fieldPath: status.hostIPs}}}
`

// TestDualStack: DS-1 to DS-20 on two nodes, whose pods, Services, names, host ports and
// policies are of both families.
func TestDualStack(t *testing.T) {
	t.Parallel() // with a cluster of its own
	f, v6 := newFamilies(t, "dual")
	f.must(f.Up("--cluster-cidr", bothPods, "--service-cidr", bothServices, "--cluster-dns", bothDNS,
		"--node-ip", f.Address+","+v6))
	second, err := f.Host("node2", func(a *harness.Agent, c *agentconfig.Config) {
		c.NodeIP = a.Address + "," + a.Address6()
		c.ClusterCIDR, c.ServiceCIDR, c.ClusterDNS = bothPods, bothServices, strings.Split(bothDNS, ",")
	})
	f.must(err)
	f.must(second.Start())
	f.is(f.Address+" "+v6, "node/node1", `{.status.addresses[?(@.type=="InternalIP")].address}`) // DS-5
	f.is(`["10.244.0.0/24","fd00:10:244::/64"]`, "node/node1", "{.spec.podCIDRs}")               // DS-3
	f.is(`["10.244.1.0/24","fd00:10:244:1::/64"]`, "node/node2", "{.spec.podCIDRs}")
	f.MustWith(t, podsOnBoth, "apply", "-f", "-")
	f.k("rollout", "status", "daemonset/web", "--timeout=60s")
	f.k("wait", "pod/client", "--for=condition=Ready", "--timeout=60s")
	f.addresses(v6)
	f.services(v6, second)
	f.policies()
	f.masquerades(v6, second)
}

// TestBecomesDualStack: a cluster of IPv4 gets its ranges of IPv6 while pods run: they stay
// as they are, new ones have both, and Services get a second address when they ask.
func TestBecomesDualStack(t *testing.T) {
	t.Parallel() // with a cluster of its own
	f, v6 := newFamilies(t, "becomes")
	f.must(f.Up("--node-ip", f.Address))
	second, err := f.Join("node2")
	f.must(err)
	f.MustWith(t, podsOnBoth, "apply", "-f", "-")
	f.MustWith(t, `{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {selector: {app: web},
  ports: [{port: 80, targetPort: 8080}]}}`, "apply", "-f", "-")
	f.k("wait", "node/node2", "--for=condition=Ready", "--timeout=60s")
	f.k("rollout", "status", "daemonset/web", "--timeout=60s")
	f.k("wait", "pod/client", "--for=condition=Ready", "--timeout=60s")
	f.is(`["10.244.1.0/24"]`, "node/node2", "{.spec.podCIDRs}")
	const ids = "jsonpath={.items[*].status.containerStatuses[*].containerID} {.items[*].status.podIPs}"
	before := f.k("get", "pods", "-o", ids)

	// The coordinator's configuration alone is changed.
	f.reconfigure("clusterDNS: 10.96.0.10", "clusterDNS: "+bothDNS, "10.244.0.0/16", bothPods,
		"10.96.0.0/16", bothServices)
	for i, node := range []string{"node1", "node2"} {
		first := fmt.Sprintf("10.244.%d.0/24 fd00:10:244:", i)
		harness.Eventually(t, node+" has a range of each family", func() (bool, string) {
			out, err := f.Kubectl("", "get", "node", node, "-o", "jsonpath={.spec.podCIDRs[*]}")
			return err == nil && strings.HasPrefix(out, first), fmt.Sprint(out, err)
		})
	}
	f.restarts(second)
	f.is(f.Address+" "+v6, "node/node1", `{.status.addresses[?(@.type=="InternalIP")].address}`)
	f.is(second.Address+" "+second.Address6(), "node/node2", `{.status.addresses[?(@.type=="InternalIP")].address}`)

	f.is("10.96.0.10 fd00:10:96::a", "service/kube-dns -n kube-system", "{.spec.clusterIPs[*]}")
	f.is(`["IPv4"] SingleStack`, "service/web", "{.spec.ipFamilies} {.spec.ipFamilyPolicy}") // DS-14
	first := f.k("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
	f.gets("client", at(first, "80"))
	if after := f.k("get", "pods", "-o", ids); after != before {
		t.Errorf("pods that run were touched: before\n%s\nand then\n%s", before, after)
	}
	f.k("delete", "pods", "--all", "--now")
	f.MustWith(t, podsOnBoth, "apply", "-f", "-")
	f.k("rollout", "status", "daemonset/web", "--timeout=60s")
	f.k("wait", "pod/client", "--for=condition=Ready", "--timeout=60s")
	f.addresses(v6)
	f.k("patch", "service", "web", "-p", `{"spec":{"ipFamilyPolicy":"PreferDualStack"}}`) // DS-16
	f.is(first+` ["IPv4","IPv6"]`, "service/web", "{.spec.clusterIP} {.spec.ipFamilies}")
	f.gets("client", at(f.k("get", "service", "web", "-o", "jsonpath={.spec.clusterIPs[1]}"), "80"))
	f.answers("client", "fd00:10:96::a", "aaaa", "web.default.svc.cluster.local", "fd00:10:96::")
}

// TestMorePodRanges: a cluster whose range for pods is used up gets another one, and goes
// on with it while pods run.
func TestMorePodRanges(t *testing.T) {
	t.Parallel() // with a cluster of its own
	f, _ := newFamilies(t, "more")
	const full, more = "10.244.0.0/24", "10.244.0.0/24,10.250.0.0/16"
	f.must(f.Up("--node-ip", f.Address, "--cluster-cidr", full))
	second, err := f.Host("node2", func(_ *harness.Agent, c *agentconfig.Config) { c.ClusterCIDR = full })
	f.must(err)
	f.must(second.Start())
	f.MustWith(t, podsOnBoth, "apply", "-f", "-")
	f.k("wait", "pod/client", "--for=condition=Ready", "--timeout=60s")
	f.is("CIDRNotAvailable", "events -n default --field-selector=reason=CIDRNotAvailable", "{.items[0].reason}")
	before := f.k("get", "pod", "client", "-o", "jsonpath={.status.containerStatuses[0].containerID} {.status.podIPs}")
	f.reconfigure("clusterCIDR: "+full, "clusterCIDR: "+more)
	f.is("10.250.0.0/24", "node/node2", "{.spec.podCIDRs[*]}")
	f.restarts(second)
	f.is("2", "daemonset/web", "{.status.numberReady}")
	ips := f.k("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].status.podIP}")
	if !strings.Contains(ips, "10.250.0.") {
		t.Errorf("addresses %s, none of the second range", ips)
	}
	for ip := range strings.FieldsSeq(ips) {
		f.gets("client", at(ip, "8080"))
	}
	harness.Eventually(t, "the first node does not masquerade what goes to the second range", func() (bool, string) {
		out, err := harness.Command(f.NetNS, "nft", "list", "chain", "ip", "shoal-pods", "postrouting").CombinedOutput()
		return strings.Contains(string(out), "ip daddr 10.250.0.0/16 return"), fmt.Sprint(string(out), err)
	})
	after := f.k("get", "pod", "client", "-o", "jsonpath={.status.containerStatuses[0].containerID} {.status.podIPs}")
	if after != before {
		t.Errorf("a pod that runs was touched: before %s, then %s", before, after)
	}
}

// reconfigure replaces words of the coordinator's configuration, and has it start again.
func (f families) reconfigure(oldNew ...string) {
	f.t.Helper()
	file := filepath.Join(f.Dir, "coordinator.yaml")
	data, err := os.ReadFile(file)
	f.must(err)
	f.must(os.WriteFile(file, []byte(strings.NewReplacer(oldNew...).Replace(string(data))), 0o600))
	f.Kill(f.t, "coordinator")
}

// restarts waits until an agent has ended by itself for further ranges, and starts it again:
// nobody else does. The first node's is started by `shoal up`.
func (f families) restarts(a *harness.Agent) {
	f.t.Helper()
	harness.Eventually(f.t, "an agent ends", func() (bool, string) {
		log, err := os.ReadFile(filepath.Join(a.Dir, "agent.log"))
		return strings.Contains(string(log), "the agent starts again with them"), fmt.Sprint(err)
	})
	f.must(a.Kill())
	f.must(a.Start())
}

// TestIPv6Alone: a cluster of IPv6, on machines that have no other address.
func TestIPv6Alone(t *testing.T) {
	t.Parallel() // with a cluster of its own
	f, v6 := newFamilies(t, "six")
	const pods, services, dns = "fd00:10:244::/56", "fd00:10:96::/112", "fd00:10:96::a"
	noIPv4 := func(netns string) {
		out, err := harness.Command(netns, "ip", "-4", "address", "flush", "dev", "eth0").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	noIPv4(f.NetNS)
	f.must(f.Up("--cluster-cidr", pods, "--service-cidr", services, "--cluster-dns", dns, "--node-ip", v6))
	f.Address = "[" + v6 + "]" // by which the second joins
	second, err := f.Host("node2", func(a *harness.Agent, c *agentconfig.Config) {
		c.NodeIP, c.ClusterCIDR, c.ServiceCIDR, c.ClusterDNS = a.Address6(), pods, services, []string{dns}
	})
	f.must(err)
	noIPv4(second.NetNS)
	f.must(second.Start())
	f.is(`["fd00:10:244::/64"]`, "node/node1", "{.spec.podCIDRs}")
	f.is(second.Address6(), "node/node2", `{.status.addresses[?(@.type=="InternalIP")].address}`)
	f.MustWith(t, podsOnBoth, "apply", "-f", "-")
	f.MustWith(t, `{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {selector: {app: web}, type: NodePort,
  ports: [{port: 80, targetPort: 8080}], ipFamilyPolicy: PreferDualStack}}`, "apply", "-f", "-") // DS-8
	f.k("rollout", "status", "daemonset/web", "--timeout=60s")
	f.k("wait", "pod/client", "--for=condition=Ready", "--timeout=60s")
	f.is(`["IPv6"]`, "service/web", "{.spec.ipFamilies}")
	if ips := f.k("get", "pods", "-o", "jsonpath={.items[*].status.podIPs[*].ip}"); strings.Contains(ips, ".") {
		t.Errorf("addresses of pods: %s", ips)
	}
	for ip := range strings.FieldsSeq(f.k("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].status.podIP}")) {
		f.gets("client", at(ip, "8080"))
	}
	f.gets("client", "http://web")
	f.gets("client", at(v6, "8088"))
	port := f.k("get", "service", "web", "-o", "jsonpath={.spec.ports[0].nodePort}")
	f.gets("client", at(second.Address6(), port))
	f.answers("client", dns, "aaaa", "kubernetes.default.svc.cluster.local", "fd00:10:96::1")
	if out := f.k("logs", "client"); out != "" {
		t.Errorf("logs: %s", out)
	}
	// The agent comes again.
	f.Kill(t, "agent")
	f.gets("client", "http://web")
}

// addresses: what is told of a pod's addresses, and that each leads to it (DS-1).
func (f families) addresses(v6 string) {
	f.t.Helper()
	ips := strings.Fields(f.k("get", "pod", "client", "-o", "jsonpath={.status.podIPs[*].ip}"))
	if len(ips) != 2 || !strings.HasPrefix(ips[0], "10.244.0.") || !strings.HasPrefix(ips[1], "fd00:10:244:") {
		f.t.Fatalf("addresses of the client: %v", ips)
	}
	want := strings.Join(ips, ",") + " " + f.Address + "," + v6
	if got := f.k("exec", "client", "--", "sh", "-c", "echo $IPS $HOSTS"); got != want {
		f.t.Errorf("the downward API says %q, want %q", got, want)
	}
	if got := f.k("exec", "client", "--", "cat", "/etc/hosts"); !strings.Contains(got, ips[0]+"\tclient") ||
		!strings.Contains(got, ips[1]+"\tclient") {
		f.t.Errorf("/etc/hosts: %s", got)
	}
	servers := strings.Fields(f.k("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].status.podIPs[*].ip}"))
	if len(servers) != 4 {
		f.t.Fatalf("addresses of the servers: %v", servers)
	}
	for _, ip := range servers {
		f.gets("client", at(ip, "8080"))
	}
}

// services: their addresses, slices, names and node ports (DS-6 to DS-18).
func (f families) services(v6 string, second *harness.Agent) {
	f.t.Helper()
	const one = `
---
{apiVersion: v1, kind: Service, metadata: {name: %s}, spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}], %s}}`
	for name, spec := range map[string]string{
		"plain":    "type: ClusterIP",
		"prefer":   "ipFamilyPolicy: PreferDualStack, type: NodePort",
		"require":  "ipFamilyPolicy: RequireDualStack, ipFamilies: [IPv6, IPv4]",
		"six":      "ipFamilies: [IPv6]",
		"headless": "ipFamilyPolicy: PreferDualStack, clusterIP: None",
	} {
		f.MustWith(f.t, fmt.Sprintf(one, name, spec), "apply", "-f", "-")
	}
	f.is(`["IPv4"] SingleStack`, "service/plain", "{.spec.ipFamilies} {.spec.ipFamilyPolicy}")
	f.is(`["IPv6"] SingleStack`, "service/six", "{.spec.ipFamilies} {.spec.ipFamilyPolicy}")
	f.is(`["IPv4","IPv6"]`, "service/prefer", "{.spec.ipFamilies}")
	f.is(`["IPv6","IPv4"]`, "service/require", "{.spec.ipFamilies}")
	for name, families := range map[string]string{
		"plain": "IPv4", "prefer": "IPv4 IPv6", "require": "IPv4 IPv6", "six": "IPv6", "headless": "IPv4 IPv6",
	} {
		harness.Eventually(f.t, "slices of "+name, func() (bool, string) {
			out, err := f.Kubectl("", "get", "endpointslices", "-l", "kubernetes.io/service-name="+name, "-o",
				"jsonpath={.items[*].addressType}", "--sort-by=.addressType")
			return err == nil && out == families, fmt.Sprint(out, err)
		})
		if name == "headless" {
			continue
		}
		for _, ip := range strings.Fields(f.k("get", "service", name, "-o", "jsonpath={.spec.clusterIPs[*]}")) {
			for range 4 { // both backends, mostly
				f.gets("client", at(ip, "80"))
			}
			kind, reverse := "a", "plain"
			if strings.Contains(ip, ":") {
				kind, reverse = "aaaa", "six"
			}
			for server := range strings.SplitSeq(bothDNS, ",") {
				f.answers("client", server, kind, name+".default.svc.cluster.local", ip)
				if name == reverse {
					f.answers("client", server, "ptr", ip, name+".default.svc.cluster.local")
				}
			}
		}
	}
	f.answers("client", "10.96.0.10", "aaaa", "headless.default.svc.cluster.local", "fd00:10:244:1:")
	f.is(strings.ReplaceAll(bothDNS, ",", " "), "service/kube-dns -n kube-system", "{.spec.clusterIPs[*]}")
	port := f.k("get", "service", "prefer", "-o", "jsonpath={.spec.ports[0].nodePort}")
	for _, ip := range []string{f.Address, v6, second.Address, second.Address6()} {
		for _, port := range []string{port, "8088"} { // a node port, and a host port
			f.gets("client", at(ip, port))
			out, err := harness.Command(second.NetNS, "curl", "-sS", "-m", "10", at(ip, port)).CombinedOutput()
			if err != nil || !strings.HasPrefix(string(out), "Hello") {
				f.t.Errorf("from a node, %s: %v %s", at(ip, port), err, out)
			}
		}
	}
	// DS-17, DS-16: the second address goes and comes, the first stays.
	first := f.k("get", "service", "prefer", "-o", "jsonpath={.spec.clusterIP}")
	f.k("patch", "service", "prefer", "-p", `{"spec":{"ipFamilyPolicy":"SingleStack"}}`)
	f.is(`["`+first+`"] ["IPv4"]`, "service/prefer", "{.spec.clusterIPs} {.spec.ipFamilies}")
	f.k("patch", "service", "prefer", "-p", `{"spec":{"ipFamilyPolicy":"RequireDualStack"}}`)
	f.is(first+` ["IPv4","IPv6"]`, "service/prefer", "{.spec.clusterIP} {.spec.ipFamilies}")
	f.gets("client", at(f.k("get", "service", "prefer", "-o", "jsonpath={.spec.clusterIPs[1]}"), "80"))
}

// policies hold for each of a pod's addresses.
func (f families) policies() {
	f.t.Helper()
	servers := strings.Fields(f.k("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].status.podIPs[*].ip}"))
	f.MustWith(f.t, `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny}
spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}
`, "apply", "-f", "-")
	for _, ip := range servers {
		f.blocked("client", at(ip, "8080"))
	}
	f.MustWith(f.t, `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: allow}
spec: {podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {matchLabels: {app: client}}}]}]}
`, "apply", "-f", "-")
	for _, ip := range servers {
		f.gets("client", at(ip, "8080"))
	}
	f.k("delete", "networkpolicy", "deny", "allow")
}

// masquerades: others see the node's address of the family (DS-20).
func (f families) masquerades(v6 string, second *harness.Agent) {
	f.t.Helper()
	var l net.Listener
	f.must(harness.Inside(second.NetNS, func() (err error) { l, err = net.Listen("tcp", ":7777"); return err }))
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, _ := netip.ParseAddrPort(r.RemoteAddr)
		fmt.Fprintf(w, "from %s", from.Addr().Unmap())
	})}
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	for to, want := range map[string]string{second.Address: f.Address, second.Address6(): v6} {
		if got := f.k("exec", "client", "--", "timeout", "5", "wget", "-qO-", at(to, "7777")); got != "from "+want {
			f.t.Errorf("%s sees a pod %q, want %s", to, got, want)
		}
	}
}
