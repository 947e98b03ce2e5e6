package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/agent/service"
	"github.com/shoal-project/shoal/cni/cidr"
	"github.com/shoal-project/shoal/cni/foreign"
	"github.com/shoal-project/shoal/cni/nft"
)

// Config of the server.
type Config struct {
	Addrs      []netip.Addr // the cluster DNS addresses; put on the loopback interface
	Port       int          // default 53
	Domain     string       // cluster domain, such as cluster.local
	ResolvConf string       // names the upstream servers; default /etc/resolv.conf
	Table      string       // nftables table that limits clients, owned; "" = none
	// Pods are the ranges and addresses of this node's pods, as they are now.
	// Only they and the node itself are answered.
	Pods func() cidr.Prefixes
	// Search are the domains in which a pod's resolver looks for names, those of its
	// namespace and of the cluster first; none for who has no such ones.
	Search     func(netip.Addr) []string
	Completion Completion
	Upstreams  Upstreams
	HostsFile  string  // names that are answered beside the cluster's; "" = none
	Counts     *Counts // nil counts for nobody
	// Foreign tells when another program changed the node's network; nil: nobody does.
	Foreign *foreign.Watcher
	Log     *slog.Logger
}

// Source is where the tables come from.
type Source interface {
	Tables() *service.Tables // nil as long as nothing is known
}

// Server answers on the cluster DNS address.
type Server struct {
	cfg  Config
	log  *slog.Logger
	zone zone
	up   *forwarder

	answers   *answerCache // of the zone
	searches  *answerCache // completed ones
	completer completer
	hosts     *hosts
	counts    *Counts

	sources  sources
	queue    *queue
	conns    *shares // TCP connections
	panicked sync.Once

	unmetered       bool            // was told
	rules           *nft.Conn       // knows the tables that limit clients; nil: there are none
	changedByOthers <-chan struct{} // as cfg.Foreign tells

	mu          sync.Mutex
	tables      *service.Tables // of the last query
	generations uint64          // how many tables there were
}

// New touches nothing yet.
func New(cfg Config, src Source) *Server {
	if cfg.Port == 0 {
		cfg.Port = 53
	}
	if cfg.ResolvConf == "" {
		cfg.ResolvConf = "/etc/resolv.conf"
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Counts == nil {
		cfg.Counts = NewCounts(cfg.Domain)
	}
	s := &Server{
		cfg:       cfg,
		log:       cfg.Log,
		zone:      zone{src: src, domain: dns.CanonicalName(cfg.Domain)},
		up:        newForwarder(cfg.ResolvConf, cfg.Addrs, cfg.Counts),
		answers:   newCache(zoneMax),
		searches:  newCache(completeMax),
		completer: newCompleter(cfg),
		hosts:     &hosts{file: cfg.HostsFile},
		counts:    cfg.Counts,
		sources:   sources{pods: cfg.Pods},
		queue:     newQueue(slots(), maxWaiting),
		conns:     newShares(maxConns),
	}
	s.changedByOthers = cfg.Foreign.Any()
	s.up.set(cfg.Upstreams)
	s.counts.follow(s)
	return s
}

const listenRetry = 5 * time.Second

// Run serves until ctx ends. What keeps it from listening is told once and
// tried again.
func (s *Server) Run(ctx context.Context) error {
	told := false
	for {
		err := s.serve(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if !told {
			told = true
			s.log.Error("cluster DNS cannot be served; trying on", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(listenRetry):
		}
	}
}

func (s *Server) serve(ctx context.Context) error {
	if err := s.addAddresses(); err != nil {
		return err
	}
	if err := s.meter(); err != nil && !s.unmetered {
		s.unmetered = true
		s.log.Warn("the kernel does not limit what one pod may ask the cluster DNS; a flood may cost others' queries",
			"err", err)
	}
	var sockets []io.Closer
	var serve []func(context.Context) error
	closeAll := func() {
		for _, c := range sockets {
			c.Close()
		}
	}
	for _, a := range s.cfg.Addrs {
		u, l, err := s.listen(ctx, a)
		if err != nil {
			closeAll()
			return err
		}
		sockets = append(sockets, u, l)
		serve = append(serve, func(ctx context.Context) error { return s.serveUDP(ctx, u) },
			func(ctx context.Context) error { return s.serveTCP(ctx, l) })
	}
	eg, ctx := errgroup.WithContext(ctx)
	for _, f := range serve {
		eg.Go(func() error { return f(ctx) })
	}
	eg.Go(func() error { s.makeAgain(ctx); return nil })
	eg.Go(func() error { <-ctx.Done(); closeAll(); return nil })
	err := eg.Wait()
	s.queue.running.Wait()
	s.up.running.Wait()
	return err
}

// makeAgain makes again what another program takes away: addresses and the limit of what a
// client may ask.
func (s *Server) makeAgain(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.changedByOthers:
		}
		if err := errors.Join(s.addAddresses(), s.unlessMetered()); err != nil {
			s.log.Warn("what the cluster DNS needs was changed by somebody else, and cannot be made right", "err", err)
		}
	}
}

func (s *Server) listen(ctx context.Context, a netip.Addr) (*net.UDPConn, net.Listener, error) {
	at := net.JoinHostPort(a.String(), strconv.Itoa(s.cfg.Port))
	u, err := (&net.ListenConfig{Control: enlarge}).ListenPacket(ctx, "udp", at)
	if err == nil {
		var l net.Listener
		if l, err = (&net.ListenConfig{}).Listen(ctx, "tcp", at); err == nil {
			return u.(*net.UDPConn), l, nil
		}
		u.Close()
	}
	if errors.Is(err, unix.EADDRINUSE) {
		err = fmt.Errorf("%w: another DNS server listens on every address of this machine; bind it to its own", err)
	}
	return nil, nil, fmt.Errorf("cluster DNS: %w", err)
}

// addAddresses puts the cluster DNS addresses on the loopback interface.
func (s *Server) addAddresses() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("cluster DNS: %w", err)
	}
	for _, a := range s.cfg.Addrs {
		if a.IsLoopback() {
			continue
		}
		if err := netlink.AddrReplace(lo, hostAddr(a)); err != nil {
			return fmt.Errorf("cluster DNS: address %s: %w", a, err)
		}
	}
	return nil
}

// Cleanup takes the addresses and the table away.
func (s *Server) Cleanup() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("cluster DNS: %w", err)
	}
	errs := []error{s.removeMeter()}
	for _, a := range s.cfg.Addrs {
		if a.IsLoopback() {
			continue
		}
		if err := netlink.AddrDel(lo, hostAddr(a)); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			errs = append(errs, fmt.Errorf("cluster DNS: address %s: %w", a, err))
		}
	}
	return errors.Join(errs...)
}

func hostAddr(a netip.Addr) *netlink.Addr {
	out := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}}
	if a.Is6() {
		out.Flags = unix.IFA_F_NODAD // can be bound at once
	}
	return out
}

// request is what is known of a query beside its text.
type request struct {
	ctx    context.Context
	client netip.Addr
	tcp    bool
	began  time.Time // when it came
	slot   *slot
}

// respond answers a packet; nil when it deserves no answer. A mistake of ours
// in one query must not end the agent.
func (s *Server) respond(req *request, packet []byte) (out []byte) {
	var q *dns.Msg
	defer func() {
		if p := recover(); p != nil {
			s.counts.panics.Add(1)
			s.panicked.Do(func() {
				s.log.Error("a DNS query made the server panic and was answered SERVFAIL; this is told once",
					"panic", p, "query", q, "client", req.client, "stack", string(debug.Stack()))
			})
			out = failure(q, packet)
		}
	}()
	if out = s.quick(req, packet, nil, time.Now()); out != nil {
		return out
	}
	q, wrong := parse(packet)
	if q == nil && wrong == nil {
		return nil
	}
	r, limit := wrong, dns.MaxMsgSize
	if q != nil {
		r = s.answer(req, q)
		if !req.tcp {
			limit = udpLimit(q)
		}
	}
	shorten(r, limit)
	s.count(req, q, r)
	out, err := r.Pack()
	if err != nil {
		s.log.Debug("dns answer cannot be packed", "err", err)
		return failure(q, packet)
	}
	return out
}

// minRecord is the size of the smallest record: a compressed name, type,
// class, time to live and length.
const minRecord = 12

// shorten makes an answer fit. The library looks at every record again and
// again, so what cannot fit is left out before.
func shorten(r *dns.Msg, limit int) {
	if most := limit / minRecord; len(r.Answer) > most {
		r.Answer, r.Truncated = r.Answer[:most], true
	}
	if most := limit / minRecord; len(r.Extra) > most {
		r.Extra = slices.DeleteFunc(r.Extra, func(rr dns.RR) bool { return rr.Header().Rrtype != dns.TypeOPT })
	}
	r.Truncate(limit)
}

// failure is the answer SERVFAIL, with the question as far as it was read.
func failure(q *dns.Msg, packet []byte) []byte {
	r := &dns.Msg{MsgHdr: dns.MsgHdr{Id: binary.BigEndian.Uint16(packet), Response: true, Rcode: dns.RcodeServerFailure}}
	if q != nil {
		r.RecursionDesired, r.RecursionAvailable, r.Question = q.RecursionDesired, true, q.Question
	}
	out, err := r.Pack()
	if err != nil {
		return nil
	}
	return out
}

// maxUDP avoids fragments (DNS flag day 2020).
const maxUDP = 1232

func udpLimit(q *dns.Msg) int {
	if opt := q.IsEdns0(); opt != nil {
		return max(dns.MinMsgSize, min(int(opt.UDPSize()), maxUDP))
	}
	return dns.MinMsgSize
}

// count counts an answer that was not stored.
func (s *Server) count(req *request, q, r *dns.Msg) {
	if q == nil {
		s.counts.answered(req, rootZone, dns.TypeNone, r.Rcode)
		return
	}
	zone := rootZone
	if dns.IsSubDomain(s.zone.domain, q.Question[0].Name) {
		zone = clusterZone
	}
	s.counts.answered(req, zone, q.Question[0].Qtype, r.Rcode)
}

// answer finds who answers a query.
func (s *Server) answer(req *request, q *dns.Msg) *dns.Msg {
	opt := q.IsEdns0()
	if opt != nil && opt.Version() != 0 { // RFC 6891 section 6.1.3
		r := refuse(q, dns.RcodeBadVers)
		r.SetEdns0(maxUDP, opt.Do())
		return r
	}
	if q.Question[0].Qclass != dns.ClassINET || transfers(q.Question[0].Qtype) {
		return refuse(q, dns.RcodeNotImplemented)
	}
	name := strings.ToLower(q.Question[0].Name)
	var r *dns.Msg
	switch {
	case dns.IsSubDomain(s.zone.domain, name):
		r = s.inZone(req, q, name)
	case dns.IsSubDomain("in-addr.arpa.", name) || dns.IsSubDomain("ip6.arpa.", name):
		if r = s.zone.reverse(q, name); r == nil {
			r = s.outside(req, q, name)
		}
	default:
		r = s.outside(req, q, name)
	}
	if opt != nil && r.IsEdns0() == nil {
		r.SetEdns0(maxUDP, opt.Do())
	}
	return r
}

// inZone answers a name of the cluster, or what its client looks for if there is none.
func (s *Server) inZone(req *request, q *dns.Msg, name string) *dns.Msg {
	generation := s.generation()
	r := s.zone.answer(q, name)
	if r.Rcode == dns.RcodeNameError && s.completer.takes(q) {
		if c := s.complete(req, q, name); c != nil {
			s.keepCompleted(req.client, q, c, generation)
			return c
		}
	}
	if !s.chase(req, r, q) {
		if opt := q.IsEdns0(); opt != nil {
			r.SetEdns0(maxUDP, opt.Do())
		}
		s.keep(q, r, generation)
	}
	return r
}

// outside answers a name that is not the cluster's.
func (s *Server) outside(req *request, q *dns.Msg, name string) *dns.Msg {
	if r := s.hosts.answer(q, name, time.Now()); r != nil {
		return r
	}
	return s.up.forward(req, q)
}

// transfers tells the types that ask for whole zones or are no data (RFC 6895
// section 3.1); ANY is one of them, but has an answer.
func transfers(qtype uint16) bool {
	return qtype == dns.TypeOPT || qtype >= dns.TypeTKEY && qtype < dns.TypeANY
}

// chase adds the addresses of an ExternalName's target, as resolvers of pods
// do not ask again (SVC-62). It tells whether there is one.
func (s *Server) chase(req *request, r, q *dns.Msg) bool {
	if len(r.Answer) != 1 || q.Question[0].Qtype == dns.TypeCNAME {
		return false
	}
	alias, ok := r.Answer[0].(*dns.CNAME)
	if !ok {
		return false
	}
	sub := new(dns.Msg)
	sub.SetQuestion(alias.Target, q.Question[0].Qtype)
	var found *dns.Msg
	if name := strings.ToLower(alias.Target); dns.IsSubDomain(s.zone.domain, name) {
		found = s.zone.answer(sub, name)
	} else {
		found = s.outside(req, sub, name)
	}
	if found.Rcode == dns.RcodeServerFailure {
		r.Rcode = found.Rcode
	}
	r.Answer = append(r.Answer, found.Answer...)
	return true
}

func refuse(q *dns.Msg, rcode int) *dns.Msg {
	r := new(dns.Msg)
	r.SetRcode(q, rcode)
	return r
}
