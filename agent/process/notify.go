package process

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// ServiceManager hears of the process's state (sd_notify(3)). The zero value is
// nobody: a process that no service manager started.
type ServiceManager struct {
	socket string
	// watchdog is how often it wants to hear that the process lives; 0 is never.
	watchdog time.Duration
}

// TakeServiceManager takes the service manager's socket out of the environment:
// some libraries announce readiness by themselves, too early, and children are
// not this process.
func TakeServiceManager() (ServiceManager, error) {
	m := ServiceManager{socket: os.Getenv("NOTIFY_SOCKET")}
	if err := os.Unsetenv("NOTIFY_SOCKET"); err != nil {
		return m, err
	}
	var err error
	m.watchdog, err = daemon.SdWatchdogEnabled(true)
	return m, err
}

// Ready tells that the process serves.
func (m ServiceManager) Ready() { m.tell(daemon.SdNotifyReady) }

// Starting tells that the start goes on, and may take so much longer: a service
// manager's time-out for it counts from now (EXTEND_TIMEOUT_USEC of sd_notify(3)).
func (m ServiceManager) Starting(longer time.Duration) {
	m.tell(fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", longer.Microseconds()))
}

// Stopping tells that the process ends.
func (m ServiceManager) Stopping() { m.tell(daemon.SdNotifyStopping) }

// KeepAlive tells that the process lives, as often as the manager wants it, until
// ctx ends: alive is asked each time, and answers false, or not at all, when it does
// not.
func (m ServiceManager) KeepAlive(ctx context.Context, alive func(context.Context) bool) {
	if m.watchdog == 0 {
		<-ctx.Done()
		return
	}
	for {
		if alive(ctx) {
			m.tell(daemon.SdNotifyWatchdog)
		}
		select {
		case <-ctx.Done():
			return
		// A third: one answer may come late, and one be lost.
		case <-time.After(m.watchdog / 3):
		}
	}
}

// tell sends a state. Nobody may be listening any more: nothing depends on it
// here.
func (m ServiceManager) tell(state string) {
	if m.socket == "" {
		return
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: m.socket, Net: "unixgram"})
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = conn.Write([]byte(state))
}
