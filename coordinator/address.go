package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/shoal-project/shoal/agent/process"
	"github.com/shoal-project/shoal/coordinator/config"
)

// hostName is what people call this machine; others may have the same.
func hostName() string {
	host, err := os.Hostname()
	if err != nil {
		return "coordinator"
	}
	return host
}

// advertiseAddress is the configured one, else the bound one, else that of the
// interface with the default route, else loopback: a machine without a network
// is a cluster of its own.
func advertiseAddress(cfg config.Config) (net.IP, error) {
	if cfg.AdvertiseAddress != "" {
		return net.ParseIP(cfg.AdvertiseAddress), nil
	}
	bind := net.ParseIP(cfg.BindAddress)
	if !findsAddress(cfg) {
		return bind, nil
	}
	ip, err := utilnet.ResolveBindAddress(bind)
	if utilnet.IsNoRoutesError(err) || err == nil && ip == nil {
		return net.IPv4(127, 0, 0, 1), nil
	}
	if err != nil {
		return nil, fmt.Errorf("find the machine's address: %w (set --advertise-address)", err)
	}
	return ip, nil
}

// findsAddress tells whether advertiseAddress looks for one.
func findsAddress(cfg config.Config) bool {
	return cfg.AdvertiseAddress == "" && net.ParseIP(cfg.BindAddress).IsUnspecified()
}

// followAddress ends the coordinator once this machine has another address than it began
// with: who started it starts it again, with the one of now.
func (s parts) followAddress(ctx context.Context) error {
	had := []netip.Addr{s.server().Addr()}
	now, err := process.Moved(ctx, had, func() ([]netip.Addr, error) {
		ip, err := advertiseAddress(s.cfg)
		a, _ := netip.AddrFromSlice(ip)
		return []netip.Addr{a.Unmap()}, err
	})
	if err != nil {
		s.log.Warn("a change of this machine's address is found at the next start only", "err", err)
		return nil
	}
	if len(now) > 0 {
		return fmt.Errorf("this machine has the address %s now, instead of %s: the coordinator starts again with it",
			now[0], had[0])
	}
	return nil
}

// external is host:port of the API as others reach it.
func (s parts) external() string {
	return net.JoinHostPort(s.advertise.String(), strconv.Itoa(s.port))
}

// server is the same as an address.
func (s parts) server() netip.AddrPort {
	ip, _ := netip.AddrFromSlice(s.advertise)
	return netip.AddrPortFrom(ip.Unmap(), uint16(s.port))
}

// maxConnections is what upstream's largest clusters keep open, several times over.
const maxConnections = 20000

// listenAPI opens the API's port. Connections are limited before anybody has said
// who they are.
func listenAPI(cfg config.Config) (net.Listener, error) {
	address := net.JoinHostPort(cfg.BindAddress, strconv.Itoa(cfg.Port))
	l, err := net.Listen("tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil,
			fmt.Errorf(
				"serve the API on %s: the port is in use; stop what uses it (ss -ltnp 'sport = :%d' shows it), or choose another with --port",
				address, cfg.Port)
	}
	if err != nil {
		return nil, fmt.Errorf("serve the API: %w", err)
	}
	return process.LimitConnections(l, process.ConnectionsUpTo(maxConnections)), nil
}

// maxMonitors is how many connections a port for monitoring has at once.
const maxMonitors = 256

// listenMonitors opens the ports for monitoring that the configuration names.
func listenMonitors(cfg config.Config) (list []net.Listener, err error) {
	for _, p := range []struct {
		field, flag string
		port        int
	}{
		{"schedulerPort", "--scheduler-port", cfg.SchedulerPort},
		{"controllerManagerPort", "--controller-manager-port", cfg.ControllerManagerPort},
	} {
		if p.port == 0 {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort(cfg.BindAddress, strconv.Itoa(p.port)))
		if err != nil {
			closeAll(list)
			return nil, fmt.Errorf("%s: %w; choose another with %s, or 0 for none", p.field, err, p.flag)
		}
		list = append(list, process.LimitConnections(l, process.ConnectionsUpTo(maxMonitors)))
	}
	return list, nil
}

func closeAll(list []net.Listener) {
	for _, l := range list {
		_ = l.Close()
	}
}
