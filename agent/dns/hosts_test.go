package dns

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/shoal-project/shoal/agent/metrics"
)

const hostsText = `127.0.0.1 localhost
127.0.1.1 node-1 # the node's own
192.0.2.7	Registry.lan registry
2001:db8::7 registry.lan
fe80::1%eth0 scoped
nonsense
192.0.2.8
999.0.2.1 wrong
192.0.2.9 data.prod.svc.cluster.local
`

// TestHosts: names of the file are answered before any server is asked, and follow it.
func TestHosts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(file, []byte(hostsText), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newServer(t, func(w dns.ResponseWriter, q *dns.Msg) {
		r := new(dns.Msg)
		r.SetRcode(q, dns.RcodeNameError)
		_ = w.WriteMsg(r)
	})
	if got := show(ask(s, "registry.lan.", dns.TypeA)); got != "NXDOMAIN" {
		t.Errorf("without a file: %s", got)
	}
	s.up.negative.clear()
	s.hosts.file = file
	for _, x := range []struct {
		name  string
		qtype uint16
		want  string
	}{
		{"registry.lan.", dns.TypeA, "NOERROR registry.lan. A 192.0.2.7"},
		{"REGISTRY.", dns.TypeA, "NOERROR REGISTRY. A 192.0.2.7"},
		{"registry.lan.", dns.TypeAAAA, "NOERROR registry.lan. AAAA 2001:db8::7"},
		{"registry.", dns.TypeAAAA, "NOERROR"},
		{"7.2.0.192.in-addr.arpa.", dns.TypePTR, "NOERROR 7.2.0.192.in-addr.arpa. PTR registry.lan."},
		{"8.2.0.192.in-addr.arpa.", dns.TypePTR, "NXDOMAIN"},
		{"localhost.", dns.TypeA, "NXDOMAIN"},
		{"node-1.", dns.TypeA, "NXDOMAIN"},
		{"scoped.", dns.TypeAAAA, "NXDOMAIN"},
		{"wrong.", dns.TypeA, "NXDOMAIN"},
		{"data.prod.svc.cluster.local.", dns.TypeA, "NOERROR data.prod.svc.cluster.local. A 10.96.0.20"},
	} {
		if got := show(over(t, s, x.name, x.qtype)); got != x.want {
			t.Errorf("%s %s: got %s, want %s", x.name, dns.TypeToString[x.qtype], got, x.want)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	s.hosts.read = time.Time{}
	if got := show(over(t, s, "registry.lan.", dns.TypeA)); got != "NXDOMAIN" {
		t.Errorf("after its end: %s", got)
	}
}

func TestCounts(t *testing.T) {
	s := newServer(t, elsewhere)
	for range 3 {
		over(t, s, "www.example.com.", dns.TypeA)
		over(t, s, "www.example.com.", dns.TypeAAAA)
	}
	over(t, s, "gone.prod.svc.cluster.local.", dns.TypeA)
	over(t, s, "data.prod.svc.cluster.local.", dns.TypeTLSA)
	var b bytes.Buffer
	p := metrics.NewPage(&b)
	s.counts.Show(p)
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	server := `server="dns://127.0.0.1:53"`
	to := `proxy_name="forward",to="` + s.up.servers[0] + `",rcode="NOERROR"`
	for _, want := range []string{
		`coredns_dns_requests_total{` + server + `,zone=".",view="",proto="udp",family="1",type="A"} 3`,
		`coredns_dns_requests_total{` + server + `,zone="cluster.local.",view="",proto="udp",family="1",type="other"} 1`,
		`coredns_dns_request_duration_seconds_count{` + server + `,zone=".",view=""} 6`,
		`coredns_dns_responses_total{` + server + `,zone="cluster.local.",view="",rcode="NXDOMAIN",plugin=""} 1`,
		`coredns_dns_responses_total{` + server + `,zone=".",view="",rcode="NOERROR",plugin=""} 6`,
		`coredns_cache_entries{type="success",` + server + `,zones=".",view=""} 1`,
		`coredns_cache_entries{type="denial",` + server + `,zones=".",view=""} 1`,
		`coredns_cache_hits_total{type="success",` + server + `,zones=".",view=""} 2`,
		`coredns_cache_hits_total{type="denial",` + server + `,zones=".",view=""} 2`,
		`coredns_cache_misses_total{` + server + `,zones=".",view=""} 2`,
		`coredns_cache_requests_total{` + server + `,zones=".",view=""} 6`,
		`coredns_proxy_request_duration_seconds_count{` + to + `} 2`,
		`coredns_panics_total 0`,
	} {
		if !strings.Contains(b.String(), want+"\n") {
			t.Errorf("%s is not told", want)
		}
	}
	if t.Failed() {
		t.Log(b.String())
	}
	(*Counts)(nil).Show(p)
}
