package e2e

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"

	"github.com/shoal-project/shoal/tests/harness"
)

// TestStubDomain: a domain gets a server of its own by kube-dns's ConfigMap, and a pod's
// search for a name in it ends at the first question, so that the server is asked for
// nothing but the name itself.
func TestStubDomain(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.k("create", "deployment", "hello", "--image=localhost/hello:1")
	s.k("rollout", "status", "deployment/hello", "--timeout=60s")
	s.sleeper("client")
	ip := s.k("get", "pods", "-l", "app=hello", "-o", "jsonpath={.items[0].status.podIP}")
	domain := s.ns + ".test."
	var conn net.PacketConn
	if err := harness.Inside(cluster.NetNS, func() (err error) {
		conn, err = net.ListenPacket("udp", net.JoinHostPort(cluster.Address, "0"))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	asked := map[string]int{}
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		mu.Lock()
		asked[q.Question[0].Name+" "+dns.TypeToString[q.Question[0].Qtype]]++
		mu.Unlock()
		r := new(dns.Msg)
		r.SetReply(q)
		if q.Question[0].Qtype == dns.TypeA {
			h := dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 300}
			r.Answer = []dns.RR{&dns.A{Hdr: h, A: net.ParseIP(ip)}}
		}
		_ = w.WriteMsg(r)
	})}
	go func() { _ = server.ActivateAndServe() }()
	t.Cleanup(func() { conn.Close() })
	cluster.MustWith(t, fmt.Sprintf(`
apiVersion: v1
kind: ConfigMap
metadata: {name: kube-dns, namespace: kube-system}
data: {stubDomains: '{%q: [%q]}'}
`, domain, conn.LocalAddr()), "apply", "-f", "-")
	t.Cleanup(func() { cluster.Must(t, "-n", "kube-system", "delete", "configmap", "kube-dns") })
	s.gets("client", "http://www.deep."+domain[:len(domain)-1]+":8080", "Hello")
	// busybox's resolver is libc's, and asks for this name alone.
	out := s.exec("client", "nslookup", "www.deep."+domain+s.ns+".svc.cluster.local.")
	if !strings.Contains(out, "canonical name = www.deep."+domain[:len(domain)-1]) || !strings.Contains(out, ip) {
		t.Errorf("the search is not completed:\n%s", out)
	}
	s.shows(`coredns_proxy_request_duration_seconds_count{proxy_name="forward",to="`+conn.LocalAddr().String(),
		"get", "--raw", "/api/v1/nodes/node1/proxy/metrics")
	mu.Lock()
	defer mu.Unlock()
	for name := range asked {
		if !slices.Contains([]string{"www.deep." + domain + " A", "www.deep." + domain + " AAAA"}, name) {
			t.Errorf("the domain's server was asked for %s", name)
		}
	}
	if len(asked) == 0 {
		t.Error("the domain's server was not asked")
	}
}
