package api

import (
	"crypto/x509"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"
)

// tellRefusals logs, once until it is over, that the API server does not take
// the node's credential or that its certificate is not of the CA known here:
// nothing gets better by trying on.
func (s *Server) tellRefusals() {
	rc := s.cfg.Rest
	remedy := "join again with a new token (shoal join), or make a new kubeconfig on the coordinator's machine: " +
		"shoal-coordinator kubeconfig --user system:node:" +
		s.cfg.NodeName +
		" --group system:nodes --server " + rc.Host + " --out FILE; put it there and restart the agent"
	log := s.cfg.Log.With("kubeconfig", s.cfg.Kubeconfig)
	rc.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &refusals{next: next, log: log, remedy: remedy, ends: s.CertificateEnd, refused: s.refusedAt}
	})
}

type refusals struct {
	next   http.RoundTripper
	log    *slog.Logger
	remedy string
	ends   func() time.Time // of the client certificate; zero: there is none
	// refused takes the API server's time at which it did not take the credential.
	refused func(at time.Time)
	told    atomic.Bool
}

func (r *refusals) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := r.next.RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusUnauthorized {
		if at, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
			r.refused(at)
		}
	}
	switch {
	case err != nil:
		var unknown x509.UnknownAuthorityError
		var invalid x509.CertificateInvalidError
		if (errors.As(err, &unknown) || errors.As(err, &invalid)) && r.told.CompareAndSwap(false, true) {
			r.log.Error("the API server's certificate is not valid by the CA in the kubeconfig",
				"err", err, "remedy", r.remedy)
		}
	case resp.StatusCode != http.StatusUnauthorized:
		r.told.Store(false)
	case r.told.CompareAndSwap(false, true):
		message := "the API server does not take this node's credential"
		if ends := r.ends(); !ends.IsZero() && time.Now().After(ends) {
			message += ": the client certificate expired on " + ends.Format(time.RFC3339)
		}
		r.log.Error(message, "remedy", r.remedy)
	}
	return resp, err
}
