package main

import (
	"context"
	"net/http"
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
	_, _ = daemon.SdNotify(false, daemon.SdNotifyReady)
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil || interval == 0 {
		<-ctx.Done()
	} else {
		watchdog(ctx, s, interval/3)
	}
	_, _ = daemon.SdNotify(false, daemon.SdNotifyStopping)
	return nil
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
			_, _ = daemon.SdNotify(false, daemon.SdNotifyWatchdog)
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
