package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// whyAPI has a server that lets in who is a friend, at its port http, and a client
// that may ask for names and no more.
var whyAPI = map[string]string{
	"/api/v1/namespaces": `{"items":[{"metadata":{"name":"a","labels":{"env":"dev"}}},{"metadata":{"name":"b"}}]}`,
	"/api/v1/pods": `{"items":[
{"metadata":{"namespace":"a","name":"web","labels":{"app":"web"}},
 "spec":{"nodeName":"n1","containers":[{"name":"c","ports":[{"name":"http","containerPort":8080,"protocol":"TCP"}]}]},
 "status":{"hostIPs":[{"ip":"192.0.2.1"}],"podIPs":[{"ip":"10.244.0.2"},{"ip":"fd00::2"}]}},
{"metadata":{"namespace":"a","name":"friend","labels":{"friend":"yes"}},"spec":{"nodeName":"n2"},
 "status":{"podIPs":[{"ip":"10.244.1.3"}]}},
{"metadata":{"namespace":"b","name":"quiet","labels":{"app":"quiet"}},"spec":{"nodeName":"n2"},
 "status":{"podIPs":[{"ip":"10.244.1.4"}]}},
{"metadata":{"namespace":"b","name":"host"},"spec":{"nodeName":"n2","hostNetwork":true},
 "status":{"podIPs":[{"ip":"192.0.2.2"}]}},
{"metadata":{"namespace":"b","name":"unborn"},"spec":{"nodeName":"n2"},"status":{}}]}`,
	"/apis/networking.k8s.io/v1/networkpolicies": `{"items":[
{"metadata":{"namespace":"a","name":"friends"},"spec":{"podSelector":{"matchLabels":{"app":"web"}},"ingress":[
  {"from":[{"ipBlock":{"cidr":"198.51.100.0/24"}}]},
  {"from":[{"podSelector":{"matchLabels":{"friend":"yes"}}}],"ports":[{"port":"http"}]}]}},
{"metadata":{"namespace":"a","name":"deny"},"spec":{"podSelector":{},"policyTypes":["Ingress"]}},
{"metadata":{"namespace":"b","name":"names"},"spec":{"podSelector":{"matchLabels":{"app":"quiet"}},
  "policyTypes":["Egress"],"egress":[{"ports":[{"port":53,"protocol":"UDP"}]}]}}]}`,
	"/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies": `{"items":[
{"metadata":{"name":"guard"},"spec":{"tier":"Admin","priority":1,"subject":{"namespaces":{}},"ingress":[
  {"name":"no telnet","action":"Deny","from":[{"namespaces":{}}],"protocols":[{"tcp":{"destinationPort":{"number":23}}}]}]}},
{"metadata":{"name":"rest"},"spec":{"tier":"Baseline","priority":1,
  "subject":{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"friend":"yes"}}}},
  "egress":[{"action":"Deny","to":[{"networks":["203.0.113.0/24"]}]}]}}]}`,
}

func TestWhy(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(whyAPI[r.URL.Path]))
	}))
	defer s.Close()
	client := &api{server: s.URL, http: s.Client()}
	for _, c := range []struct{ from, to, protocol, want string }{
		{"a/friend", "a/web:8080", "TCP", `a/friend (10.244.1.3) -> a/web (10.244.0.2) TCP 8080: allowed
  egress of a/friend: no policy isolates it
  ingress of a/web: isolated by a/deny, a/friends; a/friends allows this by rule 2 of its ingress
`},
		{"friend", "web:9090", "TCP", `a/friend (10.244.1.3) -> a/web (10.244.0.2) TCP 9090: not allowed
  egress of a/friend: no policy isolates it
  ingress of a/web: isolated by a/deny, a/friends; none of their rules allows this
`},
		{"b/quiet", "a/web", "TCP", `b/quiet (10.244.1.4) -> a/web (10.244.0.2) TCP every port: not allowed
  egress of b/quiet: isolated by b/names; none of their rules allows this
  ingress of a/web: isolated by a/deny, a/friends; none of their rules allows this
`},
		{"b/quiet", "203.0.113.9:53", "udp", `b/quiet (10.244.1.4) -> 203.0.113.9 (no pod's: blocks of addresses count; of a Service ask for an endpoint) UDP 53: allowed
  egress of b/quiet: isolated by b/names; b/names allows this by rule 1 of its egress
`},
		{"198.51.100.7", "a/web", "TCP", `198.51.100.7 (no pod's: blocks of addresses count; of a Service ask for an endpoint) -> a/web (10.244.0.2) TCP every port: allowed
  ingress of a/web: isolated by a/deny, a/friends; a/friends allows this by rule 1 of its ingress
`},
		{"b/host", "a/web:8080", "TCP", `192.0.2.2 (a node's: blocks of addresses count, selectors do not) -> a/web (10.244.0.2) TCP 8080: not allowed
  ingress of a/web: isolated by a/deny, a/friends; none of their rules allows this
`},
		{"friend", "web:23", "TCP", `a/friend (10.244.1.3) -> a/web (10.244.0.2) TCP 23: not allowed
  egress of a/friend: no policy isolates it
  ingress of a/web: rule 1 ("no telnet") of the ingress of ClusterNetworkPolicy guard, tier Admin, denies this
`},
		{"friend", "203.0.113.9:80", "TCP", `a/friend (10.244.1.3) -> 203.0.113.9 (no pod's: blocks of addresses count; of a Service ask for an endpoint) TCP 80: not allowed
  egress of a/friend: rule 1 of the egress of ClusterNetworkPolicy rest, tier Baseline, denies this
`},
		{"192.0.2.1", "a/web:1", "TCP", `192.0.2.1 (no pod's: blocks of addresses count; of a Service ask for an endpoint) -> a/web (10.244.0.2) TCP 1: allowed
  a pod and its own node may always talk to each other
`},
		{"fd00::2", "[fd00::2]:1", "TCP", `a/web (fd00::2) -> a/web (fd00::2) TCP 1: allowed
  a pod may always talk to itself
`},
		{"192.0.2.7", "b/host", "SCTP", `192.0.2.7 (no pod's: blocks of addresses count; of a Service ask for an endpoint) -> 192.0.2.2 (a node's: blocks of addresses count, selectors do not) SCTP every port: allowed
  neither is a pod with an address of its own: policies see nothing of this
`},
	} {
		var out strings.Builder
		o := &whyOptions{namespace: "a", protocol: c.protocol}
		if err := o.why(t.Context(), client, c.from, c.to, &out); err != nil || out.String() != c.want {
			t.Errorf("%s %s: %v\n%swant\n%s", c.from, c.to, err, out.String(), c.want)
		}
	}
	for _, c := range []struct{ from, to, protocol, want string }{
		{"a/none", "a/web", "TCP", "there is no pod a/none"},
		{"b/unborn", "a/web", "TCP", "has no address yet"},
		{"a/friend", "a/web:http", "TCP", "the port is a number"},
		{"a/friend", "fd00::9:x:8080", "TCP", "in brackets"},
		{"a/friend", "fd00::9", "TCP", "same family"},
		{"a/friend", "a/web", "ICMP", "--protocol ICMP"},
	} {
		var out strings.Builder
		o := &whyOptions{namespace: "a", protocol: c.protocol}
		if err := o.why(t.Context(), client, c.from, c.to, &out); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: %v, want %s", c.from, c.to, err, c.want)
		}
	}
}
