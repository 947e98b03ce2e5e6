package main

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"

	"github.com/shoal-project/shoal/agent/process"
	"github.com/shoal-project/shoal/coordinator/config"
)

// lockState takes the state directory for this process.
func lockState(cfg config.Config) (unlock func(), err error) {
	f, err := process.Lock(cfg.StateDir())
	var other *process.InUse
	if errors.As(err, &other) {
		return nil, fmt.Errorf("use data directory %s: another coordinator (pid %s) runs on it; stop it, or choose another with --data-dir", cfg.DataDir, other.PID)
	}
	if err != nil {
		return nil, fmt.Errorf("use data directory %s: %w (run as root, or choose another with --data-dir)", cfg.DataDir, err)
	}
	return func() { _ = f.Close() }, nil
}

// maxConnections is what upstream's largest clusters keep open, several times over.
const maxConnections = 20000

// listenAPI opens the API's port. Connections are limited before anybody has said
// who they are.
func listenAPI(cfg config.Config) (net.Listener, error) {
	address := net.JoinHostPort(cfg.BindAddress, strconv.Itoa(cfg.Port))
	l, err := net.Listen("tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("serve the API on %s: the port is in use; stop what uses it (ss -ltnp 'sport = :%d' shows it), or choose another with --port", address, cfg.Port)
	}
	if err != nil {
		return nil, fmt.Errorf("serve the API: %w", err)
	}
	return process.LimitConnections(l, process.ConnectionsUpTo(maxConnections)), nil
}
