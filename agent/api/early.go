package api

import (
	"slices"
	"time"
)

// A certificate that was signed while the coordinator's clock was ahead begins in the future
// once that is set right, and whoever shows it is nobody until then. So the certificate before
// it is kept, and used again when the API server refuses a node at a time, by its own clock,
// at which that one is valid and the newer one has not begun.

// before is the file of the certificate before the one that Renew has brought last.
func (s *Server) before() string {
	if s.cfg.Rotated == "" {
		return ""
	}
	return s.cfg.Rotated + ".before"
}

// keepBefore writes down the certificate in use, if it is not the kubeconfig's.
func (s *Server) keepBefore() error {
	s.using.Lock()
	used := s.used
	s.using.Unlock()
	if !slices.Equal(used.Cert, used.Key) {
		return nil
	}
	return replaceFile(s.before(), used.Cert)
}

func (s *Server) isEarly(pair []byte) bool {
	early, c := s.early.Load(), firstCertificate(pair)
	return early != nil && c != nil && c.Equal(early)
}

// refusedAt takes the API server's time at which it did not take the node's credential.
func (s *Server) refusedAt(at time.Time) {
	if s.way == nil || s.cfg.Rotated == "" {
		return
	}
	shown, early := s.leaf(), s.early.Load()
	switch {
	case shown != nil && at.Before(shown.NotBefore):
		s.early.Store(shown)
		c, err := s.Credentials()
		leaf := firstCertificate(c.Cert)
		if err != nil || leaf == nil || at.Before(leaf.NotBefore) || at.After(leaf.NotAfter) {
			s.early.CompareAndSwap(shown, early)
			return
		}
		s.cfg.Log.Warn("the node's client certificate begins later, by the API server's clock: the one before it is used",
			"begins", shown.NotBefore.Format(time.RFC3339), "now", at.Format(time.RFC3339))
	case early != nil && !at.Before(early.NotBefore):
		s.early.Store(nil) // it has begun
	default:
		return
	}
	if err := s.reload(); err != nil {
		s.cfg.Log.Warn("the old credentials stay in use", "kubeconfig", s.cfg.Kubeconfig, "err", err)
	}
}
