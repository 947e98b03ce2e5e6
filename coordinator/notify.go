package main

import (
	"context"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// announce tells systemd, and the log, when the API is ready, that the process
// lives, and that it stops.
func announce(ctx context.Context, s parts) error {
	if !waitReady(ctx, s) {
		return nil
	}
	s.log.Info("API is ready", "address", "https://"+s.external(), "after", time.Since(s.begin).Round(time.Millisecond))
	close(s.ready)
	s.systemd.tell(daemon.SdNotifyReady)
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil || interval == 0 {
		<-ctx.Done()
	} else {
		watchdog(ctx, s, interval/3)
	}
	s.systemd.tell(daemon.SdNotifyStopping)
	return nil
}

// systemd is the service manager's socket, "" without one (sd_notify(3)).
type systemd string

// takeSystemd takes the socket out of the environment: the API server's library
// would announce READY=1 too early, and then take it away from everybody.
func takeSystemd() systemd {
	socket := os.Getenv("NOTIFY_SOCKET")
	_ = os.Unsetenv("NOTIFY_SOCKET")
	return systemd(socket)
}

// tell sends a state. Nobody may be listening any more: nothing depends on it
// here.
func (s systemd) tell(state string) {
	if s == "" {
		return
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: string(s), Net: "unixgram"})
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = conn.Write([]byte(state))
}

// waitReady asks /readyz in process until it is ready; the libraries have no
// event for that.
func waitReady(ctx context.Context, s parts) bool {
	for {
		if get(ctx, s, "/readyz") {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// watchdog reports life while /livez answers, which includes the store.
func watchdog(ctx context.Context, s parts, every time.Duration) {
	for {
		if get(ctx, s, "/livez") {
			s.systemd.tell(daemon.SdNotifyWatchdog)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
		}
	}
}

func get(ctx context.Context, s parts, path string) bool {
	code := 0
	s.api.Client().Discovery().RESTClient().Get().AbsPath(path).Do(ctx).StatusCode(&code)
	return code == http.StatusOK
}
