package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/agent/service"
)

// Config of the server.
type Config struct {
	Addrs      []netip.Addr // the cluster DNS addresses; put on the loopback interface
	Port       int          // default 53
	Domain     string       // cluster domain, such as cluster.local
	ResolvConf string       // names the upstream servers; default /etc/resolv.conf
	Log        *slog.Logger
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
}

// New touches nothing yet.
func New(cfg Config, src Source) *Server {
	if cfg.Port == 0 {
		cfg.Port = 53
	}
	if cfg.ResolvConf == "" {
		cfg.ResolvConf = "/etc/resolv.conf"
	}
	s := &Server{cfg: cfg, log: cfg.Log, zone: zone{src: src, domain: dns.CanonicalName(cfg.Domain)}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.up = newForwarder(cfg.ResolvConf, cfg.Addrs)
	return s
}

const (
	listenRetry = 5 * time.Second
	// udpWait is how long the library's reader may wait; a short one would
	// wake an idle process for nothing.
	udpWait = 24 * time.Hour
	tcpWait = 5 * time.Second
)

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
	var servers []*dns.Server
	closeAll := func() {
		for _, d := range servers {
			if d.PacketConn != nil {
				d.PacketConn.Close()
			} else {
				d.Listener.Close()
			}
		}
	}
	for _, a := range s.cfg.Addrs {
		at := net.JoinHostPort(a.String(), strconv.Itoa(s.cfg.Port))
		u, err := (&net.ListenConfig{}).ListenPacket(ctx, "udp", at)
		if err == nil {
			servers = append(servers, &dns.Server{PacketConn: u, Handler: s, ReadTimeout: udpWait, UDPSize: dns.DefaultMsgSize})
			var l net.Listener
			if l, err = (&net.ListenConfig{}).Listen(ctx, "tcp", at); err == nil {
				servers = append(servers, &dns.Server{Listener: l, Handler: s, ReadTimeout: tcpWait})
			}
		}
		if err != nil {
			closeAll()
			if errors.Is(err, unix.EADDRINUSE) {
				err = fmt.Errorf("%w: another DNS server listens on every address of this machine; bind it to its own", err)
			}
			return fmt.Errorf("cluster DNS: %w", err)
		}
	}
	eg, ctx := errgroup.WithContext(ctx)
	for _, d := range servers {
		eg.Go(d.ActivateAndServe)
	}
	eg.Go(func() error { <-ctx.Done(); closeAll(); return nil })
	return eg.Wait()
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

// Cleanup takes the addresses away.
func (s *Server) Cleanup() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("cluster DNS: %w", err)
	}
	var errs []error
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
	return &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}}
}

// ServeDNS implements dns.Handler.
func (s *Server) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	_, tcp := w.RemoteAddr().(*net.TCPAddr)
	r := s.answer(q, tcp)
	if r == nil {
		return
	}
	limit := dns.MaxMsgSize
	if !tcp {
		limit = udpLimit(q)
	}
	r.Truncate(limit)
	if err := w.WriteMsg(r); err != nil {
		s.log.Debug("dns answer not sent", "err", err)
	}
}

// maxUDP avoids fragments (DNS flag day 2020).
const maxUDP = 1232

func udpLimit(q *dns.Msg) int {
	if opt := q.IsEdns0(); opt != nil {
		return max(dns.MinMsgSize, min(int(opt.UDPSize()), maxUDP))
	}
	return dns.MinMsgSize
}

// answer finds who answers a query.
func (s *Server) answer(q *dns.Msg, tcp bool) *dns.Msg {
	if q.Response || q.Opcode != dns.OpcodeQuery || len(q.Question) != 1 || q.Question[0].Qclass != dns.ClassINET {
		return refuse(q, dns.RcodeNotImplemented)
	}
	name := strings.ToLower(q.Question[0].Name)
	var r *dns.Msg
	switch {
	case dns.IsSubDomain(s.zone.domain, name):
		r = s.zone.answer(q, name)
		s.chase(r, q, tcp)
	case dns.IsSubDomain("in-addr.arpa.", name) || dns.IsSubDomain("ip6.arpa.", name):
		if r = s.zone.reverse(q, name); r == nil {
			return s.up.forward(q, tcp)
		}
	default:
		return s.up.forward(q, tcp)
	}
	if opt := q.IsEdns0(); opt != nil {
		r.SetEdns0(maxUDP, opt.Do())
	}
	return r
}

// chase adds the addresses of an ExternalName's target, as resolvers of pods
// do not ask again (SVC-62).
func (s *Server) chase(r, q *dns.Msg, tcp bool) {
	if len(r.Answer) != 1 || q.Question[0].Qtype == dns.TypeCNAME {
		return
	}
	alias, ok := r.Answer[0].(*dns.CNAME)
	if !ok {
		return
	}
	sub := new(dns.Msg)
	sub.SetQuestion(alias.Target, q.Question[0].Qtype)
	var found *dns.Msg
	if name := strings.ToLower(alias.Target); dns.IsSubDomain(s.zone.domain, name) {
		found = s.zone.answer(sub, name)
	} else {
		found = s.up.forward(sub, tcp)
	}
	if found.Rcode == dns.RcodeServerFailure {
		r.Rcode = found.Rcode
	}
	r.Answer = append(r.Answer, found.Answer...)
}

func refuse(q *dns.Msg, rcode int) *dns.Msg {
	r := new(dns.Msg)
	r.SetRcode(q, rcode)
	return r
}
