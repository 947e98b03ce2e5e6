package main

import (
	"context"
	"net/http"
	"time"
)

// announce tells the service manager, and the log, when the API is ready, that the
// process lives, and that it stops.
func announce(ctx context.Context, s parts) error {
	if !waitReady(ctx, s) {
		return nil
	}
	s.log.Info("API is ready", "address", "https://"+s.external(), "after", time.Since(s.begin).Round(time.Millisecond))
	close(s.ready)
	s.manager.Ready()
	s.manager.KeepAlive(ctx, func(ctx context.Context) bool { return get(ctx, s, "/livez") }) // which asks the store
	s.manager.Stopping()
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

func get(ctx context.Context, s parts, path string) bool {
	code := 0
	s.api.Client().Discovery().RESTClient().Get().AbsPath(path).Do(ctx).StatusCode(&code)
	return code == http.StatusOK
}
