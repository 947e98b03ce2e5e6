package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/tests/bench/measure"
	"github.com/shoal-project/shoal/tests/harness"
)

// The step dns asks the cluster's DNS server on a node for names as pods do: addresses
// of Services of both families, and names outside that a resolver beside the cluster
// answers. Upstream's server is CoreDNS with kubeadm's configuration, on the same node.
const (
	nameServices  = 100
	foreignNames  = 100
	nameClients   = 32 // each with an address of its own, as pods have
	nameTime      = 15 * time.Second
	nameWarm      = 3 * time.Second
	nameDeadline  = time.Second
	resolverPort  = 5353
	clusterDNS    = "10.96.0.10"
	foreignDomain = ".example.com."
)

// corefile is what kubeadm writes (cmd/kubeadm/app/phases/addons/dns), but for what
// looks after the process (health, ready, loop, reload).
const corefile = `.:53 {
  bind %s
  errors
  kubernetes cluster.local in-addr.arpa ip6.arpa {
    kubeconfig %s
    pods insecure
    fallthrough in-addr.arpa ip6.arpa
    ttl 30
  }
  prometheus 127.0.0.1:9153
  forward . %s {
    max_concurrent 1000
  }
  cache 30 {
    disable success cluster.local
    disable denial cluster.local
  }
}
`

// names measures what questions cost, and how long their answers take.
func (b *bench) names(ctx context.Context, c *cluster) error {
	if _, err := parallel(ctx, nameServices, writers, func(i int) error {
		_, err := createService(ctx, c, i)
		return err
	}); err != nil {
		return fmt.Errorf("create Services: %w", err)
	}
	stop, err := startResolver(c)
	if err != nil {
		return err
	}
	defer stop()
	at, pid, err := b.startNames(ctx, c)
	if err != nil {
		return err
	}
	packets, err := questions()
	if err != nil {
		return err
	}
	if err := untilNamed(ctx, c, at); err != nil {
		return err
	}
	if _, err := askNames(ctx, c, at, packets, 2000, nameWarm); err != nil {
		return fmt.Errorf("before the measurement: %w", err)
	}
	for _, rate := range []int{2000, 10000} {
		before, err := measure.CPUSeconds(pid)
		if err != nil {
			return err
		}
		took, err := askNames(ctx, c, at, packets, rate, nameTime)
		if err != nil {
			return err
		}
		after, err := measure.CPUSeconds(pid)
		if err != nil {
			return err
		}
		what := fmt.Sprintf("DNS, %d questions a second", rate)
		b.record.rate(what+": questions", "a CPU second", float64(len(took))/(after-before))
		b.record.cost(what+": median", "ms", took.Median())
		b.record.cost(what+": p99", "ms", took.Quantile(0.99))
	}
	return nil
}

// startNames has names served, and returns where and by which process.
func (b *bench) startNames(ctx context.Context, c *cluster) (at string, pid int, err error) {
	resolver := net.JoinHostPort(c.address, strconv.Itoa(resolverPort))
	switch d := c.daemons.(type) {
	case *shoal:
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kube-dns"},
			Data: map[string]string{"upstreamNameservers": `["` + resolver + `"]`}}
		if _, err := c.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Create(ctx, m,
			metav1.CreateOptions{}); err != nil {
			return "", 0, err
		}
		pid, err = d.cluster.Pid("agent") // all of it
		return net.JoinHostPort(clusterDNS, "53"), pid, err
	case *peer:
		if err := buildCoreDNS(ctx, b.options.cache); err != nil {
			return "", 0, err
		}
		text := fmt.Sprintf(corefile, c.address, c.kubeconfig, resolver)
		if err := d.write("Corefile", text); err != nil {
			return "", 0, err
		}
		p, err := d.host.start(0, "coredns", d.program("coredns"), "-conf", d.path("Corefile"))
		if err != nil {
			return "", 0, err
		}
		return net.JoinHostPort(c.address, "53"), p.cmd.Process.Pid, nil
	}
	return "", 0, fmt.Errorf("no DNS server for %T", c.daemons)
}

// startResolver answers A queries outside the cluster, at the node.
func startResolver(c *cluster) (stop func(), err error) {
	var conn net.PacketConn
	if err := harness.Inside(c.netns, func() (err error) {
		conn, err = net.ListenPacket("udp", net.JoinHostPort(c.address, strconv.Itoa(resolverPort)))
		return err
	}); err != nil {
		return nil, err
	}
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		r := new(dns.Msg)
		r.SetReply(q)
		h := dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 300}
		r.Answer = []dns.RR{&dns.A{Hdr: h, A: net.IPv4(192, 0, 2, 1)}}
		_ = w.WriteMsg(r) // who asks asks again
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.ActivateAndServe() // ends when the socket is closed
	}()
	return func() { conn.Close(); <-done }, nil
}

// questions are packets: of ten five ask for a Service's address, two for the one of the
// other family, which it has not, and three for a name outside.
func questions() ([][]byte, error) {
	var out [][]byte
	for i := range 10 * nameServices {
		name, qtype := serviceName(i%nameServices)+"."+measure.Namespace+".svc.cluster.local.", dns.TypeA
		switch i * 7 % 10 {
		case 0, 1:
			qtype = dns.TypeAAAA
		case 2, 3, 4:
			name = "www" + strconv.Itoa(i%foreignNames) + foreignDomain
		}
		q := new(dns.Msg)
		q.SetQuestion(name, qtype)
		packet, err := q.Pack()
		if err != nil {
			return nil, err
		}
		out = append(out, packet)
	}
	return out, nil
}

// untilNamed waits until a name of the cluster and one outside are answered.
func untilNamed(ctx context.Context, c *cluster, at string) error {
	ask := func(name string) error {
		return harness.Inside(c.netns, func() error {
			q := new(dns.Msg)
			q.SetQuestion(name, dns.TypeA)
			r, _, err := (&dns.Client{Timeout: nameDeadline}).ExchangeContext(ctx, q, at)
			if err == nil && len(r.Answer) == 0 {
				err = fmt.Errorf("%s: %s", name, dns.RcodeToString[r.Rcode])
			}
			return err
		})
	}
	for deadline := time.Now().Add(time.Minute); ; {
		err := errors.Join(ask(serviceName(nameServices-1)+"."+measure.Namespace+".svc.cluster.local."),
			ask("www0"+foreignDomain))
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("names are not answered: %w", err)
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// askNames asks at a rate from many addresses, and returns how long each answer took, in
// milliseconds. A question without an answer, or with a wrong one, is an error.
func askNames(ctx context.Context, c *cluster, at string, packets [][]byte, rate int, d time.Duration,
) (measure.Sample, error) {
	var mu sync.Mutex
	var all measure.Sample
	var errs []error
	var wg sync.WaitGroup
	end := time.Now().Add(d)
	for i := range nameClients {
		from := netip.AddrFrom4([4]byte{127, 0, 1, byte(1 + i)})
		var conn net.Conn
		if err := harness.Inside(c.netns, func() (err error) {
			dialer := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
			conn, err = dialer.DialContext(ctx, "udp", at)
			return err
		}); err != nil {
			wg.Wait()
			return nil, err
		}
		wg.Go(func() {
			defer conn.Close()
			mine := packets[i*len(packets)/nameClients:]
			took, err := askAs(ctx, conn, mine, nameClients*time.Second/time.Duration(rate), end)
			mu.Lock()
			defer mu.Unlock()
			all, errs = append(all, took...), append(errs, err)
		})
	}
	wg.Wait()
	slices.Sort(all)
	return all, cmp.Or(errors.Join(errs...), ctx.Err())
}

// askAs asks as a single client, a question at a time.
func askAs(ctx context.Context, conn net.Conn, packets [][]byte, every time.Duration, end time.Time,
) (took measure.Sample, err error) {
	buf := make([]byte, dns.MinMsgSize)
	next := time.Now()
	for i := 0; time.Now().Before(end) && ctx.Err() == nil; i++ {
		time.Sleep(time.Until(next))
		next = next.Add(every)
		packet := packets[i%len(packets)]
		began := time.Now()
		if err := conn.SetDeadline(began.Add(nameDeadline)); err != nil {
			return took, err
		}
		if _, err := conn.Write(packet); err != nil {
			return took, err
		}
		n, err := conn.Read(buf)
		if err != nil {
			return took, fmt.Errorf("question %d of a client: %w", i, err)
		}
		const rcode = 0xF
		if n < 12 || buf[0] != packet[0] || buf[1] != packet[1] || buf[3]&rcode != dns.RcodeSuccess {
			return took, fmt.Errorf("question %d of a client: the answer is %x", i, buf[:n])
		}
		took = append(took, measure.Ms(time.Since(began)))
	}
	return took, nil
}
