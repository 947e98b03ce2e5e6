package kind

import (
	"context"
	"net/http"
)

type forLogs struct{}

// WithCommand tells the registry which requests are made by kubectl logs. kubectl says so
// itself (KEP-859): nothing but what a reader of logs may see anyway depends on it.
func WithCommand(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Kubectl-Command") == "kubectl logs" {
			r = r.WithContext(context.WithValue(r.Context(), forLogs{}, true))
		}
		h.ServeHTTP(w, r)
	})
}

// ForLogs tells whether a request is made by kubectl logs.
func ForLogs(ctx context.Context) bool { return ctx.Value(forLogs{}) != nil }
