package main

import (
	"context"
	"net/http"
	"time"
)

// announce tells the service manager, and the log, when the API is ready, that the
// process lives, and that it stops.
func (s parts) announce(ctx context.Context) error {
	if !s.waitReady(ctx) {
		return nil
	}
	s.log.Info("API is ready", "address", "https://"+s.external(), "after", time.Since(s.begin).Round(time.Millisecond))
	close(s.ready)
	s.manager.Ready()
	// Without the store: a disk that is slow, or an etcd that is away, is no better
	// after a restart.
	s.manager.KeepAlive(ctx, func(ctx context.Context) bool { return s.answers(ctx, "/livez", "exclude", "etcd") })
	s.manager.Stopping()
	return nil
}

// waitReady asks /readyz in process until it is ready; the libraries have no
// event for that.
func (s parts) waitReady(ctx context.Context) bool {
	for {
		if s.answers(ctx, "/readyz") {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (s parts) answers(ctx context.Context, path string, parameters ...string) bool {
	code := 0
	request := s.api.Client().Discovery().RESTClient().Get().AbsPath(path)
	for i := 0; i+1 < len(parameters); i += 2 {
		request.Param(parameters[i], parameters[i+1])
	}
	request.Do(ctx).StatusCode(&code)
	return code == http.StatusOK
}

// startPatience is more than a start takes that succeeds.
const startPatience = 10 * time.Second

// finishStart waits until a start that was stopped is over: the API server's
// library ends the whole process when one of its start steps is cut short.
func (s parts) finishStart(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	select {
	case <-s.ready:
	default:
		s.waitReady(ctx)
	}
}
