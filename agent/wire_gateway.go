package main

import (
	"context"
	"errors"
	"io"
	"os/user"
	"path/filepath"
	"strconv"

	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/gateway"
	"github.com/shoal-project/shoal/agent/gatewayfeed"
	"github.com/shoal-project/shoal/agent/proxy"
	"github.com/shoal-project/shoal/agent/service"
	"github.com/shoal-project/shoal/agent/withdraw"
)

func gatewayDir(cfg *config.Config) string { return filepath.Join(cfg.RunDir, "gateway") }

// gatewayUser is the user of the gateway proxy: the one of its name, which the package makes,
// or, where there is none, a number above those of users of the system (login.defs(5)) that
// nothing else of Shoal has.
const (
	gatewayUser   = "shoal-gateway"
	gatewayUserID = 64731
)

// answersGateways tells whether this node answers for Gateways and Ingresses once there are any.
func answersGateways(cfg *config.Config) bool { return cfg.Proxy() && cfg.Gateway.On() }

// newGateways answers for Gateways and Ingresses; nil without an API or with the
// configuration's word against it.
func (n whole) newGateways() *gateway.Manager {
	if !n.server.Configured() || !n.cfg.Gateway.On() {
		// One of before, when it was on, has certificates' keys and open ports.
		if err := gateway.End(gatewayDir(n.cfg)); err != nil {
			n.log.Warn("a gateway proxy of before goes on", "err", err)
		}
		if err := n.kept.gateways.Clear(func(string) bool { return true }); err != nil {
			n.log.Warn("what is known of Gateways stays on the disk", "err", err)
		}
		return nil
	}
	c := gateway.Config{
		Feed: func(ctx context.Context) (io.ReadCloser, error) {
			return n.server.Client.Discovery().RESTClient().Get().AbsPath(gatewayfeed.Path).Stream(ctx)
		},
		Services:   n.services,
		Dir:        gatewayDir(n.cfg),
		Program:    beside("shoal-gateway"),
		User:       gatewayUserID,
		Group:      gatewayUserID,
		Kept:       n.kept.gateways,
		KeepKeys:   n.cfg.KeepSecrets(),
		AccessLog:  n.cfg.Gateway.AccessLog,
		Programmed: func(t *service.Tables) { n.ends.Programmed(withdraw.Gateways, t) },
		Unknown:    func() { n.ends.Unknown(withdraw.Gateways) },
		Log:        n.log,
	}
	c.Unknown() // until it has looked whether an agent before left one
	c.HTTPPort, c.HTTPSPort = n.cfg.Gateway.Ports()
	if u, err := user.Lookup(gatewayUser); err == nil {
		id, uerr := strconv.ParseUint(u.Uid, 10, 32)
		group, gerr := strconv.ParseUint(u.Gid, 10, 32)
		if uerr == nil && gerr == nil {
			c.User, c.Group = uint32(id), uint32(group)
		}
	}
	return gateway.New(c)
}

// withGateways has the metrics of Services' proxy tell of requests too.
func withGateways(s proxy.Status, m *gateway.Manager) proxy.Status {
	if m == nil {
		return s
	}
	services := s.Metrics
	s.Metrics = func(w io.Writer) error { return errors.Join(services(w), m.Metrics(w)) }
	return s
}
