package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shoal-project/shoal/tests/harness"
)

// denyAll isolates all pods of its namespace from all others, in both directions.
const denyAll = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny}
spec: {podSelector: {}, policyTypes: [Ingress, Egress]}
`

// allowFriends lets those in that have the label, and everybody ask for names and
// reach the web pods.
const allowFriends = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: friends}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress:
  - from: [{podSelector: {matchLabels: {friend: "yes"}}}]
    ports: [{port: http}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: out}
spec:
  podSelector: {matchLabels: {role: client}}
  policyTypes: [Egress]
  egress:
  - to: [{podSelector: {matchLabels: {app: web}}}]
    ports: [{port: 8080}]
  - to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}},
      podSelector: {matchLabels: {k8s-app: kube-dns}}}]
    ports: [{port: 53, protocol: UDP}]
`

// clusterPolicies let friends in and out whatever others say, and keep out who nobody speaks of.
const clusterPolicies = `
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: e2e-guard}
spec:
  tier: Admin
  priority: 7
  subject: {namespaces: {matchLabels: {kubernetes.io/metadata.name: %[1]s}}}
  ingress:
  - action: Accept
    from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {friend: "yes"}}}}]
    protocols: [{destinationNamedPort: http}]
  egress:
  - action: Accept
    to: [{networks: [0.0.0.0/0]}]
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: e2e-rest}
spec:
  tier: Baseline
  priority: 7
  subject: {pods: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[1]s}}, podSelector: {matchLabels: {app: web}}}}
  ingress:
  - {name: the rest, action: Deny, from: [{namespaces: {}}]}
`

// policyPods are a server and clients on two nodes.
const policyPods = `
apiVersion: v1
kind: Pod
metadata: {name: web-%[1]s, labels: {app: web}}
spec:
  nodeName: %[1]s
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: localhost/hello:1, ports: [{name: http, containerPort: 8080}],
    readinessProbe: {httpGet: {port: http, path: /}, periodSeconds: 1}}]
---
apiVersion: v1
kind: Pod
metadata: {name: friend-%[1]s, labels: {role: client, friend: "yes"}}
spec:
  nodeName: %[1]s
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: localhost/busybox:1, command: [sleep, "9999"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: stranger-%[1]s, labels: {role: client}}
spec:
  nodeName: %[1]s
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: localhost/busybox:1, command: [sleep, "9999"]}]
---
apiVersion: v1
kind: Service
metadata: {name: web-%[1]s}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`

// blocked waits until a page does not come. Who lets it come proves nothing by time:
// the test asks others that must get theirs.
func (s space) blocked(from, url string) {
	s.t.Helper()
	harness.Eventually(s.t, from+" does not get "+url, func() (bool, string) {
		out, err := cluster.Kubectl("", s.args([]string{"exec", from, "--", "timeout", "1", "wget", "-qO-", url})...)
		return err != nil && !strings.Contains(out, "Hello"), fmt.Sprint(out, err)
	})
}

// TestNetworkPolicies: deny by default and allow by label hold on both nodes, by
// address, Service and name; probes go on; a policy that comes, changes and goes is
// followed, and holds while agent and coordinator are away.
func TestNetworkPolicies(t *testing.T) {
	s := newSpace(t)
	agent, err := cluster.Join("node5")
	if err != nil {
		t.Fatal(err)
	}
	defer leave(t, agent, "node5")
	s.shows("node5", "get", "nodes", "-o", "name")
	s.k("wait", "node/node5", "--for=condition=Ready", "--timeout=60s")
	nodes := []string{"node1", "node5"}
	for _, n := range nodes {
		s.apply(fmt.Sprintf(policyPods, n))
	}
	page := map[string]string{}
	for _, n := range nodes {
		s.ready("web-"+n, "friend-"+n, "stranger-"+n)
		page[n] = "http://" + s.k("get", "pod", "web-"+n, "-o", "jsonpath={.status.podIP}") + ":8080"
	}
	each := func(do func(client, server string)) {
		for _, client := range nodes {
			for _, server := range nodes {
				do(client, server)
			}
		}
	}
	each(func(client, server string) { s.gets("stranger-"+client, page[server], "Hello") })
	if out, err := harness.Command(agent.NetNS, "nft", "list", "tables").CombinedOutput(); err != nil ||
		strings.Contains(string(out), "policy") {
		t.Errorf("tables without a policy: %v\n%s", err, out)
	}

	s.apply(denyAll)
	each(func(client, server string) { s.blocked("stranger-"+client, page[server]) })
	each(func(client, server string) { s.blocked("friend-"+client, page[server]) })
	for _, n := range nodes { // the node itself may
		s.field("pod/web-"+n, `.status.conditions[?(@.type=="Ready")].status`, "True")
	}

	s.apply(allowFriends)
	each(func(client, server string) { s.gets("friend-"+client, page[server], "Hello") })
	each(func(client, server string) { s.gets("friend-"+client, "http://web-"+server, "Hello") })
	each(func(client, server string) { s.blocked("stranger-"+client, page[server]) })
	// Labels change, and with them who is a friend.
	s.k("label", "pod", "stranger-node1", "friend=yes")
	s.gets("stranger-node1", page["node1"], "Hello")
	s.gets("stranger-node1", page["node5"], "Hello")
	s.k("label", "pod", "stranger-node1", "friend-")
	s.blocked("stranger-node1", page["node1"])
	s.blocked("stranger-node1", page["node5"])

	// A pod that comes is isolated before it runs: its first word does not get out.
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: late, labels: {role: none}}
spec:
  nodeName: node5
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: localhost/busybox:1,
    command: [sh, -c, "timeout 5 wget -qO- ` + page["node5"] + `; echo over"]}]
`)
	s.field("pod/late", ".status.phase", "Succeeded")
	if out := s.k("logs", "late"); strings.Contains(out, "Hello") {
		t.Errorf("a new pod got out before it was isolated:\n%s", out)
	}

	// The kernel keeps them while the agent is away, and the next one too.
	if err := agent.Kill(); err != nil {
		t.Fatal(err)
	}
	s.blocked("stranger-node1", page["node5"])
	s.gets("friend-node1", page["node5"], "Hello")
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	s.k("wait", "node/node5", "--for=condition=Ready", "--timeout=60s")
	s.gets("friend-node5", page["node5"], "Hello")
	s.blocked("stranger-node5", page["node5"])

	s.k("delete", "networkpolicy", "--all")
	each(func(client, server string) { s.gets("stranger-"+client, page[server], "Hello") })

	// What the cluster's own say comes before these, and after them.
	s.apply(fmt.Sprintf(clusterPolicies, s.ns))
	t.Cleanup(func() { s.k("delete", "clusternetworkpolicy", "e2e-guard", "e2e-rest", "--ignore-not-found") })
	each(func(client, server string) { s.blocked("stranger-"+client, page[server]) }) // Baseline
	each(func(client, server string) { s.gets("friend-"+client, page[server], "Hello") })
	s.apply(denyAll)
	each(func(client, server string) { s.gets("friend-"+client, page[server], "Hello") }) // Admin
	each(func(client, server string) { s.blocked("stranger-"+client, page[server]) })
	s.k("delete", "networkpolicy", "--all")
	s.k("delete", "clusternetworkpolicy", "e2e-rest")
	each(func(client, server string) { s.gets("stranger-"+client, page[server], "Hello") })
	s.k("delete", "clusternetworkpolicy", "e2e-guard")
	harness.Eventually(t, "no table is left", func() (bool, string) {
		out, err := harness.Command(agent.NetNS, "nft", "list", "tables").CombinedOutput()
		return err == nil && !strings.Contains(string(out), "policy"), string(out)
	})
}
