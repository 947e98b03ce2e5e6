package server

import (
	"context"
	"crypto/x509"
	"net/http"
	"time"

	"github.com/shoal-project/shoal/agent/trust"
)

// Authorities looks which CAs the cluster has, takes them over, and tells of them.
type Authorities func(ctx context.Context) (trust.Report, error)

// lookTime bounds how long the API may take to tell the node its CAs.
const lookTime = 10 * time.Second

// authorities answers who rotates the cluster's CA. What the caller says counts for
// nothing: the node asks a coordinator that it believes.
func (s *Server) authorities(w http.ResponseWriter, r *http.Request) {
	if s.Authorities == nil {
		http.NotFound(w, r)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), lookTime)
	defer cancel()
	report, err := s.Authorities(ctx)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	reply(w, report)
}

// SetClientCAs has callers' certificates believed that these have signed, and no others.
func (a *Auth) SetClientCAs(pool *x509.CertPool) { a.clientCAs.Store(pool) }
