package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/coordinator/config"
)

// lockState takes the state directory for this process; the kernel gives it
// back when the process ends, however it ends.
func lockState(cfg config.Config) (unlock func(), err error) {
	dir := stateDir(cfg)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("use data directory %s: %w (run as root, or choose another with --data-dir)", cfg.DataDir, err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("use data directory %s: %w", cfg.DataDir, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder := make([]byte, 16)
		n, _ := f.ReadAt(holder, 0)
		_ = f.Close()
		return nil, fmt.Errorf("use data directory %s: another coordinator (pid %s) runs on it; stop it, or choose another with --data-dir", cfg.DataDir, strings.TrimSpace(string(holder[:n])))
	}
	_ = f.Truncate(0)
	_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return func() { _ = f.Close() }, nil
}

// listen opens the API's port.
func listen(cfg config.Config) (net.Listener, error) {
	address := net.JoinHostPort(cfg.BindAddress, strconv.Itoa(cfg.Port))
	l, err := net.Listen("tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("serve the API on %s: the port is in use; stop what uses it (ss -ltnp 'sport = :%d' shows it), or choose another with --port", address, cfg.Port)
	}
	if err != nil {
		return nil, fmt.Errorf("serve the API: %w", err)
	}
	return l, nil
}
