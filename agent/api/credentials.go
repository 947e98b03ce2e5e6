package api

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/shoal-project/shoal/agent/trust"
)

// Credentials are what a kubeconfig holds, or the files it names: the client
// certificate and its key, empty for none, and the cluster's CA. All are PEM.
type Credentials struct {
	Cert, Key, CA []byte
	// Told: the CAs are not the kubeconfig's but those that the cluster has told, the one
	// that signs first.
	Told bool
}

// Credentials are those that the kubeconfig of the start names, as they are now.
func (s *Server) Credentials() (Credentials, error) {
	if s.cfg.Rest == nil {
		return Credentials{}, ErrNone
	}
	return s.read(s.cfg.Rest)
}

// CA is the cluster's, as the kubeconfig has it; nil without a kubeconfig.
func (s *Server) CA() ([]byte, error) {
	if s.cfg.Rest == nil {
		return nil, nil
	}
	c, err := s.Credentials()
	return c.CA, err
}

func (s *Server) read(rc *rest.Config) (Credentials, error) {
	c := rest.CopyConfig(rc)
	if err := rest.LoadTLSFiles(c); err != nil {
		return Credentials{}, fmt.Errorf("kubeconfig %s: %w", s.cfg.Kubeconfig, err)
	}
	own := Credentials{Cert: c.CertData, Key: c.KeyData, CA: c.CAData}
	if now := trust.Read(s.cfg.Authorities, c.CAData); now != nil {
		own.CA, own.Told = now, true
	}
	for _, file := range []string{s.cfg.Rotated, s.before()} {
		if next := rotated(file, own); next != nil && !s.isEarly(next) {
			own.Cert, own.Key = next, next
			break
		}
	}
	return own, nil
}

// followEvery is how often the files of the credentials are looked at: a
// certificate that is renewed has months to go, and editors replace files in
// ways that a watch loses.
const followEvery = time.Minute

// Follow has new credentials used, by new connections too, when the kubeconfig or a
// file that it names changes, or when Renew has brought a certificate, until ctx ends.
// What cannot be used is told once, and tried again.
func (s *Server) Follow(ctx context.Context, use func(Credentials) error) error {
	if s.cfg.Rest == nil {
		<-ctx.Done()
		return nil
	}
	old, told := s.files(), ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.renewed:
			old = "" // the files may have been looked at since
		case <-time.After(followEvery):
		}
		now := s.files()
		if now == old {
			continue
		}
		if err := s.take(use); err != nil {
			if s.cfg.Failed != nil {
				s.cfg.Failed()
			}
			if err.Error() != told {
				told = err.Error()
				s.cfg.Log.Warn("the old credentials stay in use", "kubeconfig", s.cfg.Kubeconfig, "err", err)
			}
			continue
		}
		old, told = now, ""
	}
}

func (s *Server) take(use func(Credentials) error) error {
	rc, err := Load(s.cfg.Kubeconfig, s.cfg.Rest.UserAgent)
	if err != nil {
		return err
	}
	c, err := s.read(rc)
	if err != nil {
		return err
	}
	if err := s.connectWith(c); err != nil {
		return fmt.Errorf("kubeconfig %s: %w", s.cfg.Kubeconfig, err)
	}
	return use(c)
}

// connectWith has new connections made with other credentials, if they are others.
func (s *Server) connectWith(c Credentials) error {
	if s.way == nil {
		return nil
	}
	s.using.Lock()
	defer s.using.Unlock()
	if bytes.Equal(c.Cert, s.used.Cert) && bytes.Equal(c.Key, s.used.Key) && bytes.Equal(c.CA, s.used.CA) {
		return nil
	}
	if err := s.way.use(c); err != nil {
		return err
	}
	s.used = c
	poke(s.replaced)
	return nil
}

// reload takes a certificate that Renew has brought.
func (s *Server) reload() error {
	c, err := s.Credentials()
	if err != nil {
		return err
	}
	defer poke(s.renewed) // Follow tells the others
	return s.connectWith(c)
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// files tells by size and time whether the files of the credentials are the same.
func (s *Server) files() string {
	var out strings.Builder
	for _, path := range []string{s.cfg.Kubeconfig, s.cfg.Rest.CertFile, s.cfg.Rest.KeyFile, s.cfg.Rest.CAFile,
		s.cfg.Rotated, s.cfg.Authorities} {
		if info, err := os.Stat(path); err == nil {
			fmt.Fprintln(&out, path, info.ModTime().UnixNano(), info.Size())
		}
	}
	return out.String()
}

// CertificateEnd is when the client certificate expires that is in the files now, zero
// without one.
func (s *Server) CertificateEnd() time.Time {
	if s.cfg.Rest == nil {
		return time.Time{}
	}
	rc, err := Load(s.cfg.Kubeconfig, s.cfg.Rest.UserAgent)
	if err != nil || rc == nil {
		return time.Time{}
	}
	c, err := s.read(rc)
	if err != nil {
		return time.Time{}
	}
	if leaf := firstCertificate(c.Cert); leaf != nil {
		return leaf.NotAfter
	}
	return time.Time{}
}
