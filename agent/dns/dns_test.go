package dns

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/shoal-project/shoal/agent/service"
)

type fixed struct{ tables *service.Tables }

func (f fixed) Tables() *service.Tables { return f.tables }

func addrs(ss ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range ss {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func testTables() *service.Tables {
	http := []service.EndpointPort{{Name: "http", Protocol: "TCP", Number: 8080}}
	return service.NewTables([]*service.Service{
		{Key: service.Key{Namespace: "prod", Name: "data"}, ClusterIPs: addrs("10.96.0.20", "fd00::20"),
			Ports: []service.Port{{Name: "http", Protocol: "TCP", Number: 80},
				{Name: "dns", Protocol: "UDP", Number: 53}},
			Endpoints: []service.Endpoint{{Addr: addrs("10.244.1.5")[0], Ports: http}}},
		{Key: service.Key{Namespace: "prod", Name: "db"}, Headless: true,
			Ports: []service.Port{{Name: "http", Protocol: "TCP", Number: 80}},
			Endpoints: []service.Endpoint{
				{Addr: addrs("10.244.1.6")[0], Hostname: "db-0", Ports: http},
				{Addr: addrs("10.244.1.7")[0], Ports: http},
			}},
		{Key: service.Key{Namespace: "prod", Name: "idle"}, Headless: true},
		{Key: service.Key{Namespace: "prod", Name: "ext"}, ExternalName: "my.database.example.com"},
		{Key: service.Key{Namespace: "prod", Name: "alias"}, ExternalName: "data.prod.svc.cluster.local"},
	}...)
}

// show prints an answer as "RCODE record; record", without the times to live.
func show(r *dns.Msg) string {
	var parts []string
	for _, rr := range r.Answer {
		f := strings.Fields(rr.String())
		parts = append(parts, strings.Join(append([]string{f[0]}, f[3:]...), " "))
	}
	slices.Sort(parts)
	return strings.TrimSpace(dns.RcodeToString[r.Rcode] + " " + strings.Join(parts, "; "))
}

// upstream is a server that knows one name; it returns its resolv.conf.
func upstream(t testing.TB, handler dns.HandlerFunc) string {
	t.Helper()
	u, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &dns.Server{PacketConn: u, Handler: handler}
	go func() { _ = srv.ActivateAndServe() }()
	t.Cleanup(func() { u.Close() })
	file := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(file, []byte("nameserver 127.0.0.1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file + "\x00" + u.LocalAddr().String()
}

// newServer answers from the test tables; handler nil means no upstream.
func newServer(t testing.TB, handler dns.HandlerFunc) *Server {
	t.Helper()
	s := New(Config{Domain: "cluster.local", ResolvConf: filepath.Join(t.TempDir(), "none"), Addrs: addrs("127.0.0.1")},
		fixed{testTables()})
	if handler != nil {
		_, addr, _ := strings.Cut(upstream(t, handler), "\x00")
		s.up.servers, s.up.read = []string{addr}, time.Now().Add(time.Hour)
	}
	return s
}

func ask(s *Server, name string, qtype uint16) *dns.Msg {
	q := new(dns.Msg)
	q.SetQuestion(name, qtype)
	return s.answer(&request{ctx: context.Background(), client: addrs("127.0.0.1")[0]}, q)
}

func TestNames(t *testing.T) {
	world := func(w dns.ResponseWriter, q *dns.Msg) {
		r := new(dns.Msg)
		r.SetReply(q)
		if q.Question[0].Name == "my.database.example.com." && q.Question[0].Qtype == dns.TypeA {
			rr, _ := dns.NewRR("my.database.example.com. 60 IN A 198.51.100.9")
			r.Answer = append(r.Answer, rr)
		} else {
			r.Rcode = dns.RcodeNameError
		}
		_ = w.WriteMsg(r)
	}
	s := newServer(t, world)
	for _, x := range []struct {
		name  string
		qtype uint16
		want  string
	}{
		{"data.prod.svc.cluster.local.", dns.TypeA, "NOERROR data.prod.svc.cluster.local. A 10.96.0.20"}, // DNS-4
		{"DATA.Prod.svc.cluster.local.", dns.TypeA, "NOERROR DATA.Prod.svc.cluster.local. A 10.96.0.20"},
		{"data.prod.svc.cluster.local.", dns.TypeAAAA, "NOERROR data.prod.svc.cluster.local. AAAA fd00::20"},
		{"data.prod.svc.cluster.local.", dns.TypeMX, "NOERROR"},
		// DNS-6
		{"_http._tcp.data.prod.svc.cluster.local.", dns.TypeSRV, "NOERROR _http._tcp.data.prod.svc.cluster.local. SRV 0 100 80 data.prod.svc.cluster.local."},
		{"_dns._udp.data.prod.svc.cluster.local.", dns.TypeSRV, "NOERROR _dns._udp.data.prod.svc.cluster.local. SRV 0 100 53 data.prod.svc.cluster.local."},
		{"_nope._tcp.data.prod.svc.cluster.local.", dns.TypeSRV, "NXDOMAIN"},
		{"_http._tcp.db.prod.svc.cluster.local.", dns.TypeSRV,
			"NOERROR _http._tcp.db.prod.svc.cluster.local. SRV 0 50 8080 10-244-1-7.db.prod.svc.cluster.local.; " +
				"_http._tcp.db.prod.svc.cluster.local. SRV 0 50 8080 db-0.db.prod.svc.cluster.local."}, // DNS-7
		// DNS-5
		{"db.prod.svc.cluster.local.", dns.TypeA, "NOERROR db.prod.svc.cluster.local. A 10.244.1.6; db.prod.svc.cluster.local. A 10.244.1.7"},
		// DNS-12
		{"db-0.db.prod.svc.cluster.local.", dns.TypeA, "NOERROR db-0.db.prod.svc.cluster.local. A 10.244.1.6"},
		// DNS-9
		{"10-244-1-5.data.prod.svc.cluster.local.", dns.TypeA, "NOERROR 10-244-1-5.data.prod.svc.cluster.local. A 10.244.1.5"},
		{"db-1.db.prod.svc.cluster.local.", dns.TypeA, "NXDOMAIN"},
		{"idle.prod.svc.cluster.local.", dns.TypeA, "NXDOMAIN"},
		// DNS-8
		{"172-17-0-3.default.pod.cluster.local.", dns.TypeA, "NOERROR 172-17-0-3.default.pod.cluster.local. A 172.17.0.3"},
		// SVC-62
		{"ext.prod.svc.cluster.local.", dns.TypeA, "NOERROR ext.prod.svc.cluster.local. CNAME my.database.example.com.; my.database.example.com. A 198.51.100.9"},
		{"alias.prod.svc.cluster.local.", dns.TypeA, "NOERROR alias.prod.svc.cluster.local. CNAME data.prod.svc.cluster.local.; data.prod.svc.cluster.local. A 10.96.0.20"},
		{"data.test.svc.cluster.local.", dns.TypeA, "NXDOMAIN"}, // DNS-2
		{"www.kubernetes.io.default.svc.cluster.local.", dns.TypeA, "NXDOMAIN"},
		{"prod.svc.cluster.local.", dns.TypeA, "NOERROR"},
		{"none.svc.cluster.local.", dns.TypeA, "NXDOMAIN"},
		{"example.com.cluster.local.", dns.TypeA, "NXDOMAIN"},
		{"cluster.local.", dns.TypeNS, "NOERROR cluster.local. NS ns.dns.cluster.local."},
		{"dns-version.cluster.local.", dns.TypeTXT, "NOERROR dns-version.cluster.local. TXT \"1.1.0\""},
		{"20.0.96.10.in-addr.arpa.", dns.TypePTR, "NOERROR 20.0.96.10.in-addr.arpa. PTR data.prod.svc.cluster.local."},
		{"6.1.244.10.in-addr.arpa.", dns.TypePTR, "NOERROR 6.1.244.10.in-addr.arpa. PTR db-0.db.prod.svc.cluster.local."},
		{"1.2.0.192.in-addr.arpa.", dns.TypePTR, "NXDOMAIN"},
		{"my.database.example.com.", dns.TypeA, "NOERROR my.database.example.com. A 198.51.100.9"}, // DNS-21
		{"other.example.com.", dns.TypeA, "NXDOMAIN"},
	} {
		if got := show(ask(s, x.name, x.qtype)); got != x.want {
			t.Errorf("%s %s:\n got %s\nwant %s", x.name, dns.TypeToString[x.qtype], got, x.want)
		}
	}
}

func TestNegativeAnswersCarrySOA(t *testing.T) {
	s := newServer(t, nil)
	for _, name := range []string{"nope.prod.svc.cluster.local.", "prod.svc.cluster.local."} {
		r := ask(s, name, dns.TypeA)
		if len(r.Ns) != 1 || r.Ns[0].Header().Rrtype != dns.TypeSOA || !r.Authoritative {
			t.Errorf("%s: %v", name, r)
		}
	}
}

func TestNoUpstreamFailsAtOnce(t *testing.T) {
	s := newServer(t, nil)
	start := time.Now()
	if r := ask(s, "example.com.", dns.TypeA); r.Rcode != dns.RcodeServerFailure || time.Since(start) > time.Second {
		t.Errorf("got %v after %v", r, time.Since(start))
	}
}

func TestSilentUpstreamRests(t *testing.T) {
	var asked atomic.Int32
	s := newServer(t, func(dns.ResponseWriter, *dns.Msg) { asked.Add(1) })
	for range 5 {
		if r := ask(s, "example.com.", dns.TypeA); r.Rcode != dns.RcodeServerFailure {
			t.Errorf("got %v", r)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("a silent server was asked %d times in a row", n)
	}
}

func TestCache(t *testing.T) {
	var asked atomic.Int32
	s := newServer(t, func(w dns.ResponseWriter, q *dns.Msg) {
		asked.Add(1)
		r := new(dns.Msg)
		r.SetReply(q)
		rr, _ := dns.NewRR(q.Question[0].Name + " 60 IN A 198.51.100.9")
		r.Answer = append(r.Answer, rr)
		_ = w.WriteMsg(r)
	})
	for i := range 5 {
		if r := ask(s, "example.com.", dns.TypeA); len(r.Answer) != 1 {
			t.Fatalf("answer %d: %v", i, r)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("asked %d times", n)
	}
	for i := range 2 * positiveMax {
		r := new(dns.Msg)
		r.SetQuestion(fmt.Sprintf("n%d.example.com.", i), dns.TypeA)
		rr, _ := dns.NewRR(r.Question[0].Name + " 60 IN A 198.51.100.9")
		r.Answer = append(r.Answer, rr)
		s.up.store(keyOf(r), r, time.Now())
	}
	if n := s.up.positive.len(); n > positiveMax || n < positiveMax*9/10 {
		t.Errorf("cache holds %d answers", n)
	}
}

func TestOverTheWire(t *testing.T) { // UDP, truncation, EDNS, TCP
	tables := testTables()
	big := &service.Service{Key: service.Key{Namespace: "prod", Name: "big"}, Headless: true}
	for i := range 200 {
		big.Endpoints = append(big.Endpoints, service.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 244, 2, byte(i)})})
	}
	tables = tables.With(map[service.Key]*service.Service{big.Key: big})
	port := freePort(t)
	s := New(Config{Addrs: addrs("127.0.0.1"), Port: port, Domain: "cluster.local"}, fixed{tables})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	at := net.JoinHostPort("127.0.0.1", fmt.Sprint(port))
	q := new(dns.Msg)
	q.SetQuestion("big.prod.svc.cluster.local.", dns.TypeA)
	var r *dns.Msg
	for deadline := time.Now().Add(time.Minute); ; {
		var err error
		if r, _, err = (&dns.Client{}).Exchange(q, at); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	r.Compress = true // as it came
	if !r.Truncated || r.Len() > dns.MinMsgSize {
		t.Errorf("plain UDP: truncated %v, %d bytes", r.Truncated, r.Len())
	}
	if r, _, err := (&dns.Client{Net: "tcp"}).Exchange(q, at); err != nil || len(r.Answer) != 200 {
		t.Errorf("TCP: %d answers, %v", len(r.Answer), err)
	}
	q.SetEdns0(4096, false)
	r, _, err := (&dns.Client{UDPSize: 4096}).Exchange(q, at)
	if err != nil {
		t.Fatal(err)
	}
	r.Compress = true
	if !r.Truncated || r.Len() > maxUDP || len(r.Answer) < 40 || r.IsEdns0() == nil {
		t.Errorf("EDNS: %d answers in %d bytes", len(r.Answer), r.Len())
	}
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
