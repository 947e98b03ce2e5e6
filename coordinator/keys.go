package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/shoal-project/shoal/agent/process"
	"github.com/shoal-project/shoal/coordinator/auth/token"
	"github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/coordinator/pki"
	"github.com/shoal-project/shoal/coordinator/rotation"
)

// keys is where the cluster's keys and certificates are.
func keys(cfg config.Config) pki.Dir { return pki.Dir(cfg.KeysDir()) }

// cluster is what the serving certificate must cover.
func cluster(cfg config.Config, advertise net.IP) pki.Cluster {
	c := pki.Cluster{Domain: cfg.ClusterDomain, IPs: []net.IP{advertise},
		Lifetime: time.Duration(cfg.ClusterSigningDuration)}
	if prefixes, err := config.Prefixes(cfg.ServiceCIDR); err == nil {
		for _, p := range prefixes {
			c.IPs = append(c.IPs, p.Addr().Next().AsSlice())
		}
	}
	if virtual := virtualAddress(cfg); virtual.IsValid() {
		c.IPs = append(c.IPs, virtual.AsSlice())
	}
	if bind := net.ParseIP(cfg.BindAddress); bind != nil && !bind.IsUnspecified() {
		c.IPs = append(c.IPs, bind)
	}
	for _, name := range cfg.ExtraNames {
		if ip := net.ParseIP(name); ip != nil {
			c.IPs = append(c.IPs, ip)
		} else {
			c.Names = append(c.Names, name)
		}
	}
	if host, err := os.Hostname(); err == nil {
		c.Names = append(c.Names, host)
	}
	return c
}

func certPool(path string) (*x509.CertPool, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("load CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("load CA %s: no certificate in it", path)
	}
	return pool, nil
}

// dropServiceAccountKey ends a rotation of the key of service accounts, once no token can
// be left that the old one has signed, but for those of Secrets, which are made anew.
func (s parts) dropServiceAccountKey(ctx context.Context, now time.Time) error {
	status, err := s.keys.Status(ctx)
	if err != nil {
		return err
	}
	set, err := status.Of(pki.ServiceAccounts.Name)
	if err != nil || set.Step != string(pki.Signing) || now.Sub(set.Since) < token.LongestLife {
		return err
	}
	r := rotation.Rotation{Of: pki.ServiceAccounts, Dir: keys(s.cfg), API: s.keys, Out: io.Discard}
	return r.Drop(ctx)
}

// renewKeys makes the certificates anew that this coordinator shows, when a third of their
// life is left, and looks at them once a day and when somebody sets the clock: those of a
// machine that booted in the wrong year may have ended by now, or not begun. Servers and
// clients read changed files by themselves.
func (s parts) renewKeys(ctx context.Context) {
	set := make(chan struct{}, 1)
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() {
		err := process.WatchClock(ctx, func() {
			select {
			case set <- struct{}{}:
			default:
			}
		})
		if err != nil {
			s.log.Warn("certificates are not looked at when the clock is set", "err", err)
		}
	})
	peer := s.store.Embedded() && s.store.Several()
	failed := time.Duration(0) // how long it waited after the last failure
	for {
		next, err := keys(s.cfg).Renewal(peer)
		wait := min(max(time.Until(next), renewPause), renewLook)
		switch {
		case failed > 0:
			wait = failed
		case err != nil:
			wait = renewPause
		}
		select {
		case <-ctx.Done():
			return
		case <-set:
		case <-time.After(wait):
		}
		peer = s.store.Embedded() && s.store.Several()
		if err := s.renew(peer); err != nil {
			if failed == 0 {
				s.log.Warn("certificates could not be renewed; this is tried again", "err", err)
			}
			failed = min(max(2*failed, renewPause), renewLook)
			continue
		}
		failed = 0
		if err := s.dropServiceAccountKey(ctx, time.Now()); err != nil {
			s.log.Warn("the old key of service accounts is accepted still", "err", err)
		}
	}
}

// renewLook is how often certificates are looked at besides, renewPause how often at most.
const (
	renewLook  = 24 * time.Hour
	renewPause = time.Second
)

func (s parts) renew(peer bool) error {
	c := cluster(s.cfg, s.advertise)
	err := keys(s.cfg).Ensure(c, time.Now())
	s.kubelets.Reconnect()
	if peer {
		err = errors.Join(err, keys(s.cfg).EnsurePeer([]net.IP{s.advertise}, c.Lifetime, time.Now()))
	}
	return err
}

// virtualAddress leads to whichever coordinator lives; not valid without one.
func virtualAddress(cfg config.Config) netip.Addr {
	a, _ := netip.ParseAddr(cfg.VirtualAddress)
	return a
}
