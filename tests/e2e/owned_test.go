package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shoal-project/shoal/tests/harness"
)

// TestNobodyTakesClusterAddresses: a user in a namespace that sorts before all
// others, whose Services and pods ask for the address of the cluster's DNS, of
// the API, and of what the node listens on.
func TestNobodyTakesClusterAddresses(t *testing.T) {
	t.Parallel()
	s := space{t, "aaa-thief"}
	cluster.Must(t, "create", "namespace", s.ns)
	t.Cleanup(func() { cluster.Must(t, "delete", "namespace", s.ns, "--wait=false") })
	victim := newSpace(t)
	victim.sleeper("client")
	s.k("run", "thief", "--image=localhost/hello:1", "--labels=app=thief")
	s.ready("thief")

	dns := cluster.Must(t, "-n", "kube-system", "get", "service", "kube-dns", "-o", "jsonpath={.spec.clusterIP}")
	api := cluster.Must(t, "get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}")
	cluster.Must(t, "get", "ipaddress", dns)
	service := func(name, spec string) string {
		return fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: %s}, spec: {selector: {app: thief}, %s, ports: [
  {name: dns, port: 53, protocol: UDP, targetPort: 8080}, {name: dns-tcp, port: 53, targetPort: 8080}, {name: https, port: 443, targetPort: 8080},
  {name: kubelet, port: 10250, targetPort: 8080}, {name: api, port: 6443, targetPort: 8080}]}}`, name, spec)
	}
	create := []string{"create", "-f", "-"}
	s.refusedWith(service("taken", "clusterIP: "+dns), "provided IP is already allocated", create...)
	s.refusedWith(service("taken", fmt.Sprintf("externalIPs: [%s]", dns)),
		"may not be in the cluster's range of services", create...)
	s.refusedWith(service("taken", fmt.Sprintf("externalIPs: [%s]", api)),
		"may not be in the cluster's range of services", create...)
	s.refusedWith(service("taken", fmt.Sprintf("externalIPs: [%s]", cluster.Address)),
		"may not be an address of a node", create...)

	// What a balancer's controller writes, the API takes: the agent does not. The
	// last address shows that the rest of the Service is in force by then.
	const free = "203.0.113.77"
	s.apply(service("taken", fmt.Sprintf("type: LoadBalancer, externalIPs: [%s]", free)))
	s.k("patch", "service", "taken", "--subresource=status", "-p",
		fmt.Sprintf(`{"status":{"loadBalancer":{"ingress":[{"ip":%q},{"ip":%q},{"ip":%q},{"ip":"203.0.113.78"}]}}}`,
			dns, api, cluster.Address))
	for _, address := range []string{free, "203.0.113.78"} {
		harness.Eventually(t, "the thief's own address", func() (bool, string) {
			out, err := cluster.Run("curl", "-sS", "--max-time", "2", "http://"+address+":443")
			return err == nil && strings.HasPrefix(out, "Hello from pod thief"), fmt.Sprint(out, err)
		})
	}

	pod := `{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {terminationGracePeriodSeconds: 0, containers: [{name: c, image: "localhost/hello:1", ports: [%s]}]}}`
	s.apply(fmt.Sprintf(pod, "everywhere", "{containerPort: 8080, hostPort: 53}, {containerPort: 8080, hostPort: 53, protocol: UDP}, {containerPort: 8080, hostPort: 6443}, {containerPort: 8080, hostPort: 7947}"))
	s.ready("everywhere")
	s.apply(fmt.Sprintf(pod, "inside", fmt.Sprintf("{containerPort: 8080, hostPort: 443, hostIP: %s}", api)))
	s.apply(fmt.Sprintf(pod, "kubelet", "{containerPort: 8080, hostPort: 10250}"))
	s.shows("hostIP "+api+" is in the cluster's own range", "get", "events", "--field-selector=involvedObject.name=inside")
	s.shows("the node itself listens on it", "get", "events", "--field-selector=involvedObject.name=kubelet")

	// All is as it was.
	victim.shows(api, "exec", "client", "--", "nslookup", "kubernetes.default.svc.cluster.local")
	for _, address := range []string{api + ":443", cluster.Address + ":6443"} {
		if out, err := cluster.Run("curl", "-sSk", "--max-time", "5", "https://"+address+"/livez"); err != nil ||
			strings.Contains(out, "Hello") {
			t.Errorf("the API at %s: %v %s", address, err, out)
		}
		if out, err := victim.fetch("client", "http://"+address); strings.Contains(out, "Hello") {
			t.Errorf("a pod gets the thief at %s: %v %s", address, err, out)
		}
	}
	if out, err := cluster.Run("curl", "-sSk", "--max-time", "5",
		"https://"+cluster.Address+":10250/healthz"); err != nil || strings.Contains(out, "Hello") {
		t.Errorf("the node's port 10250: %v %s", err, out)
	}
	// The gossip of the node and of the coordinator does not so much as accept.
	for _, port := range []string{"7946", "7947"} {
		// ended by timeout(1): no answer
		if out, err := victim.fetch("client",
			"http://"+cluster.Address+":"+port); !strings.Contains(fmt.Sprint(out, err), "exit code 143") {
			t.Errorf("a pod at port %s of the node: %v %s", port, err, out)
		}
	}
	// The address stays taken.
	cluster.Must(t, "-n", "kube-system", "delete", "service", "kube-dns")
	harness.Eventually(t, "kube-dns is back", func() (bool, string) {
		out, err := cluster.Kubectl("", "-n", "kube-system", "get", "service", "kube-dns", "-o", "jsonpath={.spec.clusterIP}")
		return err == nil && out == dns, fmt.Sprint(out, err)
	})
}

// TestPodSendsAsItself: a pod that may set up its own network reaches others as
// itself only, and by the node only.
func TestPodSendsAsItself(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.apply(`{apiVersion: v1, kind: Pod, metadata: {name: attacker}, spec: {terminationGracePeriodSeconds: 0,
  containers: [{name: c, image: "localhost/busybox:1", command: [sleep, "9999"], securityContext: {capabilities: {add: [NET_ADMIN, NET_RAW]}}}]}}`)
	s.k("run", "victim", "--image=localhost/hello:1")
	s.ready("attacker", "victim")
	ip := s.k("get", "pod", "victim", "-o", "jsonpath={.status.podIP}")
	var b [4]int
	if _, err := fmt.Sscanf(ip, "%d.%d.%d.%d", &b[0], &b[1], &b[2], &b[3]); err != nil {
		t.Fatal(err)
	}
	mac := fmt.Sprintf("0a:58:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3])
	attack := func(script string) string {
		out, _ := cluster.Kubectl("",
			s.args([]string{"exec", "attacker", "--", "sh",
				"-c", script + "; timeout 3 wget -qO- http://" + ip + ":8080"})...)
		return out
	}
	if out := attack("true"); !strings.HasPrefix(out, "Hello from pod victim") {
		t.Fatalf("the attacker as itself: %q", out)
	}
	// Around the node.
	if out := attack("ip route add " + ip + "/32 dev eth0; arp -s " + ip + " " + mac); strings.Contains(out, "Hello") {
		t.Errorf("around the node: %q", out)
	}
	s.exec("attacker", "sh", "-c", "ip route del "+ip+"/32 dev eth0")
	// As another port of the bridge: it also must not draw the victim's traffic.
	own := strings.TrimSpace(s.exec("attacker", "cat", "/sys/class/net/eth0/address"))
	if out := attack("ip link set dev eth0 address " + mac); strings.Contains(out, "Hello") {
		t.Errorf("with the victim's hardware address: %q", out)
	}
	s.exec("attacker", "sh", "-c", "for i in 1 2 3; do arping -c 1 -w 1 -U -I eth0 -s "+ip+" "+ip+"; done >/dev/null 2>&1; true")
	if out, err := cluster.Run("curl", "-sS", "--max-time", "5", "http://"+ip+":8080"); err != nil ||
		!strings.HasPrefix(out, "Hello from pod victim") {
		t.Errorf("the node asks the victim: %v %q", err, out)
	}
	s.exec("attacker", "ip", "link", "set", "dev", "eth0", "address", own)
	if out := attack("true"); !strings.HasPrefix(out, "Hello from pod victim") {
		t.Errorf("the attacker as itself again: %q", out)
	}
}
