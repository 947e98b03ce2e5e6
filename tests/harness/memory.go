package harness

import (
	"net/http"
	"net/http/httptest"
)

// InMemory is a transport that has a handler answer requests.
type InMemory struct{ http.Handler }

// RoundTrip implements http.RoundTripper.
func (m InMemory) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	if r.Body == nil {
		r.Body = http.NoBody
	}
	m.ServeHTTP(w, r)
	answer := w.Result()
	answer.Request = r
	return answer, nil
}
