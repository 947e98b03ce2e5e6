package apiserver

import (
	"net/http"
	"testing"
)

// A client in the process is told to come back soon, and not to wait for long.
func TestLocalRetryAfter(t *testing.T) {
	for asked, want := range map[string]string{"": "", "1": "1", "2": "2", "3": "", "30": ""} {
		local := newLocalTransport()
		local.serve(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if asked != "" {
				w.Header().Set("Retry-After", asked)
			}
			w.WriteHeader(http.StatusTooManyRequests)
		}))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x.internal/api", nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := local.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if got := answer.Header.Get("Retry-After"); got != want || answer.StatusCode != http.StatusTooManyRequests {
			t.Errorf("after %q: %d, %q, want %q", asked, answer.StatusCode, got, want)
		}
	}
}
