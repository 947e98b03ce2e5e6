package dns

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/shoal-project/shoal/agent/service"
)

// internet has names with addresses of one family; it tells what it was asked.
type internet struct {
	mu    sync.Mutex
	asked []string
	names map[string]string // name to address
}

func (i *internet) serve(w dns.ResponseWriter, q *dns.Msg) {
	asked := q.Question[0]
	i.mu.Lock()
	i.asked = append(i.asked, asked.Name+" "+dns.TypeToString[asked.Qtype])
	i.mu.Unlock()
	r := new(dns.Msg)
	r.SetReply(q)
	ip, ok := i.names[asked.Name]
	switch {
	case strings.Contains(asked.Name, "broken"):
		r.Rcode = dns.RcodeServerFailure
	case !ok:
		r.Rcode, r.Ns = dns.RcodeNameError, []dns.RR{soaOf("com.", 300)}
	default:
		if a := netip.MustParseAddr(ip); asked.Qtype == dns.TypeA && a.Is4() || asked.Qtype == dns.TypeAAAA && a.Is6() {
			r.Answer = addresses(asked.Name, []netip.Addr{a}, asked.Qtype)
		} else {
			r.Ns = []dns.RR{soaOf("com.", 300)}
		}
	}
	_ = w.WriteMsg(r)
}

func (i *internet) take() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	defer func() { i.asked = nil }()
	slices.Sort(i.asked)
	return i.asked
}

func completing(t testing.TB, i *internet, mode Completion, node ...string) *Server {
	s := newServer(t, i.serve)
	s.completer.mode = mode
	s.completer.search = func(client netip.Addr) []string {
		switch client.String() {
		case "10.244.0.5":
			return append([]string{"prod.svc.cluster.local", "svc.cluster.local", "cluster.local"}, node...)
		case "10.244.0.6":
			return []string{"other.svc.cluster.local", "svc.cluster.local", "cluster.local"}
		}
		return nil
	}
	return s
}

const missing = ".prod.svc.cluster.local."

// TestCompletion: the first question of a search is answered with what its end is.
func TestCompletion(t *testing.T) {
	i := &internet{names: map[string]string{
		"www.example.com.": "198.51.100.9", "six.example.com.": "2001:db8::9", "git.corp.acme.example.": "192.0.2.7",
		"example.com.": "198.51.100.10", "a.b.corp.acme.example.": "192.0.2.8", "a.b.c.lab.acme.example.": "192.0.2.9",
		"a.git.corp.acme.example.": "192.0.2.10", "db-7.db.": "203.0.113.66",
	}}
	s := completing(t, i, CompleteLong, "corp.acme.example", "lab.acme.example")
	for _, x := range []struct {
		name  string
		qtype uint16
		want  string
	}{
		{"www.example.com", dns.TypeA,
			"NOERROR www.example.com. A 198.51.100.9; www.example.com.prod.svc.cluster.local. CNAME www.example.com."},
		{"www.example.com", dns.TypeAAAA, "NOERROR www.example.com.prod.svc.cluster.local. CNAME www.example.com."},
		{"six.example.com", dns.TypeA, "NOERROR six.example.com.prod.svc.cluster.local. CNAME six.example.com."},
		{"six.example.com", dns.TypeAAAA,
			"NOERROR six.example.com. AAAA 2001:db8::9; six.example.com.prod.svc.cluster.local. CNAME six.example.com."},
		{"none.example.com", dns.TypeA, "NXDOMAIN"},
		// The cluster's names go first, in the order of the domains.
		{"db-0.db.prod", dns.TypeA,
			"NOERROR db-0.db.prod.prod.svc.cluster.local. CNAME db-0.db.prod.svc.cluster.local.; db-0.db.prod.svc.cluster.local. A 10.244.1.6"},
		{"x.data.prod.svc", dns.TypeA, "NXDOMAIN"},
		{"data.prod.svc", dns.TypeA,
			"NOERROR data.prod.svc.cluster.local. A 10.96.0.20; data.prod.svc.prod.svc.cluster.local. CNAME data.prod.svc.cluster.local."},
		{"data.prod.svc", dns.TypeAAAA,
			"NOERROR data.prod.svc.cluster.local. AAAA fd00::20; data.prod.svc.prod.svc.cluster.local. CNAME data.prod.svc.cluster.local."},
		// As the alias of a Service's own name, whose target is not there.
		{"ext.prod.svc", dns.TypeA,
			"NOERROR ext.prod.svc.cluster.local. CNAME my.database.example.com.; ext.prod.svc.prod.svc.cluster.local. CNAME ext.prod.svc.cluster.local."},
		// Then those of the node's domains, the first one first.
		{"a.git.corp", dns.TypeA, "NXDOMAIN"},
		{"broken.example.com", dns.TypeA, "NXDOMAIN"}, // the client goes on by itself
		// What may be meant as it is is left alone.
		{"example.com", dns.TypeA, "NXDOMAIN"},
		{"db-7.db", dns.TypeA, "NXDOMAIN"},
		{"git", dns.TypeA, "NXDOMAIN"},
		{"www.example.com", dns.TypeMX, "NXDOMAIN"},
	} {
		for range 2 { // the second time from the cache
			if got := show(over(t, s, x.name+missing, x.qtype)); got != x.want {
				t.Errorf("%s %s:\n got %s\nwant %s", x.name, dns.TypeToString[x.qtype], got, x.want)
			}
		}
	}
	if got := show(over(t, s, "a.b.c"+missing, dns.TypeA)); got !=
		"NOERROR a.b.c.lab.acme.example. A 192.0.2.9; a.b.c.prod.svc.cluster.local. CNAME a.b.c.lab.acme.example." {
		t.Error(got)
	}
	r := over(t, s, "six.example.com"+missing, dns.TypeA)
	if len(r.Ns) != 1 || r.Ns[0].Header().Rrtype != dns.TypeSOA || r.Answer[0].Header().Ttl > ttl {
		t.Errorf("no data behind the alias: %v", r)
	}
}

// TestCompletionIsForItsClient: nobody's question is completed but that of a pod for its
// own namespace, and none that wants signatures.
func TestCompletionIsForItsClient(t *testing.T) {
	i := &internet{names: map[string]string{"www.example.com.": "198.51.100.9"}}
	s := completing(t, i, CompleteLong)
	from := func(client, name string, change func(*dns.Msg)) int {
		q := new(dns.Msg)
		q.SetQuestion(name, dns.TypeA)
		change(q)
		packet, err := q.Pack()
		if err != nil {
			t.Fatal(err)
		}
		r := new(dns.Msg)
		req := &request{ctx: t.Context(), client: netip.MustParseAddr(client)}
		if err := r.Unpack(s.respond(req, packet)); err != nil {
			t.Fatal(err)
		}
		return r.Rcode
	}
	as := func(*dns.Msg) {}
	for _, x := range []struct {
		what, client, name string
		change             func(*dns.Msg)
		want               int
	}{
		{"own", "10.244.0.5", "www.example.com.prod.svc.cluster.local.", as, dns.RcodeSuccess},
		{"another's", "10.244.0.6", "www.example.com.prod.svc.cluster.local.", as, dns.RcodeNameError},
		{"its own, after that", "10.244.0.6", "www.example.com.other.svc.cluster.local.", as, dns.RcodeSuccess},
		{"the node", "127.0.0.1", "www.example.com.prod.svc.cluster.local.", as, dns.RcodeNameError},
		{"second domain", "10.244.0.5", "www.example.com.svc.cluster.local.", as, dns.RcodeNameError},
		{"signatures", "10.244.0.5", "www.example.com.prod.svc.cluster.local.",
			func(q *dns.Msg) { q.SetEdns0(1232, true) }, dns.RcodeNameError},
		{"unchecked", "10.244.0.5", "www.example.com.prod.svc.cluster.local.",
			func(q *dns.Msg) { q.CheckingDisabled = true }, dns.RcodeNameError},
		{"own again", "10.244.0.5", "WWW.example.com.PROD.svc.cluster.local.",
			func(q *dns.Msg) { q.SetEdns0(1232, false) }, dns.RcodeSuccess},
	} {
		if got := from(x.client, x.name, x.change); got != x.want {
			t.Errorf("%s: %s", x.what, dns.RcodeToString[got])
		}
	}
}

// TestModesOfCompletion: two labels are completed where that was chosen, and none where not.
func TestModesOfCompletion(t *testing.T) {
	for mode, want := range map[Completion][2]int{
		CompleteNone: {dns.RcodeNameError, dns.RcodeNameError},
		CompleteLong: {dns.RcodeNameError, dns.RcodeSuccess},
		CompleteAll:  {dns.RcodeSuccess, dns.RcodeSuccess},
	} {
		i := &internet{names: map[string]string{"example.com.": "198.51.100.9", "www.example.com.": "198.51.100.9"}}
		s := completing(t, i, mode)
		for at, name := range []string{"example.com", "www.example.com"} {
			if got := over(t, s, name+missing, dns.TypeA).Rcode; got != want[at] {
				t.Errorf("%d: %s: %s", mode, name, dns.RcodeToString[got])
			}
		}
	}
}

// TestCompletionCosts: a name of the Internet costs one question upstream, and with
// domains of the node one for each of these, until that is known.
func TestCompletionCosts(t *testing.T) {
	i := &internet{names: map[string]string{"www.example.com.": "198.51.100.9"}}
	s := completing(t, i, CompleteLong)
	for range 3 {
		over(t, s, "www.example.com"+missing, dns.TypeA)
	}
	if got := i.take(); !slices.Equal(got, []string{"www.example.com. A"}) {
		t.Errorf("asked %v", got)
	}
	s = completing(t, i, CompleteLong, "corp.example", "lab.example")
	for range 3 {
		over(t, s, "www.example.com"+missing, dns.TypeA)
	}
	want := []string{"www.example.com. A", "www.example.com.corp.example. A", "www.example.com.lab.example. A"}
	if got := i.take(); !slices.Equal(got, want) {
		t.Errorf("asked %v", got)
	}
}

// TestGoResolver: a resolver that others wrote takes the answer.
func TestGoResolver(t *testing.T) {
	i := &internet{names: map[string]string{"www.example.com.": "198.51.100.9"}}
	s := completing(t, i, CompleteLong)
	s.completer.search = func(netip.Addr) []string { return []string{"prod.svc.cluster.local", "svc.cluster.local"} }
	s.cfg.Port = freePort(t)
	at := startServer(t, "", s)
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, at)
	}}
	addrs, err := r.LookupHost(t.Context(), "www.example.com"+missing)
	if err != nil || !slices.Equal(addrs, []string{"198.51.100.9"}) {
		t.Errorf("%v, %v", addrs, err)
	}
	if name, err := r.LookupCNAME(t.Context(), "www.example.com"+missing); err != nil || name != "www.example.com." {
		t.Errorf("%s, %v", name, err)
	}
}

// TestCompletedSearchesAreStored: for those with the same domains, as long as their
// alias lives and no Service changes.
func TestCompletedSearchesAreStored(t *testing.T) {
	i := &internet{names: map[string]string{"www.example.com.": "198.51.100.9", "data.prod.svc.": "203.0.113.1"}}
	s := completing(t, i, CompleteLong)
	const want = "NOERROR WWW.example.com.prod.svc.cluster.local. CNAME www.example.com.; www.example.com. A 198.51.100.9"
	over(t, s, "www.example.com"+missing, dns.TypeA)
	s.up.positive.clear() // it is not looked at again
	i.take()
	r := over(t, s, "WWW.example.com"+missing, dns.TypeA)
	if show(r) != want || len(i.take()) != 0 {
		t.Errorf("got %s", show(r))
	}
	over(t, s, "WWW.example.com"+missing, dns.TypeAAAA)
	if n := s.searches.len(); n != 2 {
		t.Errorf("%d searches are stored", n)
	}
	for n := range s.searches.shards {
		for _, e := range s.searches.shards[n].by {
			e.since, e.expires = e.since.Add(-2*time.Second), e.expires.Add(-2*time.Second)
		}
	}
	if left := over(t, s, "www.example.com"+missing, dns.TypeA).Answer[0].Header().Ttl; left != ttl-2 {
		t.Errorf("the alias lives for another %d s", left)
	}
	for n := range s.searches.shards {
		for _, e := range s.searches.shards[n].by {
			e.expires = time.Now().Add(-time.Second)
		}
	}
	i.take()
	if over(t, s, "www.example.com"+missing, dns.TypeA); len(i.take()) != 1 {
		t.Error("an old search is answered")
	}
	// A Service comes, and its name wins from then on.
	now := service.Key{Namespace: "com", Name: "example"}
	made := &service.Service{Key: now, Headless: true,
		Endpoints: []service.Endpoint{{Addr: addrs("10.244.1.9")[0], Hostname: "www"}}}
	s.zone.src = fixed{testTables().With(map[service.Key]*service.Service{now: made})}
	if got := show(over(t, s, "www.example.com"+missing, dns.TypeA)); !strings.Contains(got, " A 10.244.1.9") {
		t.Errorf("the Service's pod is not found: %s", got)
	}
}
