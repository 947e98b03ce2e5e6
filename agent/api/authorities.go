package api

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/shoal-project/shoal/agent/trust"
)

const (
	// AuthoritiesPath is where a coordinator shows the cluster's CAs, the one that signs
	// first (coordinator/joinapi, CAPath).
	AuthoritiesPath = "/shoal/join/ca"
	// askAuthorities is how often a node asks by itself: a rotation of the CA has each
	// node ask at each of its steps (LookAtAuthorities).
	askAuthorities = 10 * time.Minute
)

// FollowAuthorities takes over the CAs that the cluster has, until ctx ends: a rotation
// changes them. They come over connections that the CAs before have verified.
func (s *Server) FollowAuthorities(ctx context.Context) error {
	if s.way == nil || s.cfg.Authorities == "" {
		<-ctx.Done()
		return nil
	}
	told := ""
	for wait := time.Duration(float64(askAuthorities) * rand.Float64()); ; wait = askAuthorities {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		if err := s.LookAtAuthorities(ctx); err == nil {
			told = ""
		} else if ctx.Err() == nil && !toldElsewhere(err) && told != err.Error() {
			told = err.Error()
			s.cfg.Log.Warn("the cluster's CA is not followed; the agent tries on", "err", err)
		}
	}
}

// toldElsewhere: that no coordinator is in reach others tell, and one of an earlier version
// has no such path.
func toldElsewhere(err error) bool { return apierrors.IsNotFound(err) || unreachable(err) }

// LookAtAuthorities asks now, and takes over what has changed.
func (s *Server) LookAtAuthorities(ctx context.Context) error {
	if s.way == nil || s.cfg.Authorities == "" {
		return nil
	}
	s.asking.Lock()
	defer s.asking.Unlock()
	body, err := s.Client.Discovery().RESTClient().Get().AbsPath(AuthoritiesPath).Stream(ctx)
	if err != nil {
		return fmt.Errorf("ask for the cluster's CA: %w", err)
	}
	defer func() { _ = body.Close() }()
	data, err := io.ReadAll(io.LimitReader(body, trust.MaxBytes+1))
	if err != nil {
		return fmt.Errorf("ask for the cluster's CA: %w", err)
	}
	if len(data) > trust.MaxBytes {
		return fmt.Errorf("ask for the cluster's CA: the answer is longer than %d bytes", trust.MaxBytes)
	}
	list, err := trust.Parse(data)
	if err != nil {
		return fmt.Errorf("ask for the cluster's CA: %w", err)
	}
	return s.keepAuthorities(list)
}

// keepAuthorities writes the file, if it says something new. The kubeconfig that they
// were learned with stands in it: with another one, of another cluster perhaps, they do
// not count.
func (s *Server) keepAuthorities(list []*x509.Certificate) error {
	own, err := s.kubeconfigCA()
	if err != nil {
		return err
	}
	var bundle []byte
	for _, c := range list {
		bundle = append(bundle, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	known := trust.Read(s.cfg.Authorities, own)
	if known == nil {
		known = own
	}
	if bytes.Equal(bytes.TrimSpace(bundle), bytes.TrimSpace(known)) {
		return nil
	}
	if err := replaceFile(s.cfg.Authorities, append(trust.Head(own), bundle...)); err != nil {
		return err
	}
	s.cfg.Log.Info("the cluster has other CAs", "number", len(list), "signs", list[0].Subject.CommonName,
		"file", s.cfg.Authorities)
	c, err := s.now()
	if err != nil {
		return err
	}
	defer poke(s.renewed) // Follow tells the others
	return s.connectWith(c)
}

// now are the credentials that the files have now.
func (s *Server) now() (Credentials, error) {
	rc, err := s.load()
	if err != nil {
		return Credentials{}, err
	}
	return s.read(rc)
}

func (s *Server) load() (*rest.Config, error) {
	rc, err := Load(s.cfg.Kubeconfig, s.cfg.Rest.UserAgent)
	if err != nil || rc != nil {
		return rc, err
	}
	return s.cfg.Rest, nil
}

// kubeconfigCA is what the kubeconfig itself names now.
func (s *Server) kubeconfigCA() ([]byte, error) {
	rc, err := s.load()
	if err != nil {
		return nil, err
	}
	c := rest.CopyConfig(rc)
	if err := rest.LoadTLSFiles(c); err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", s.cfg.Kubeconfig, err)
	}
	return c.CAData, nil
}

// outdated tells whether another CA signs than the one that has signed a certificate.
// Only what the cluster has told says which one signs: a kubeconfig may list CAs in any
// order.
func (s *Server) outdated(c *x509.Certificate) bool {
	own, err := s.kubeconfigCA()
	if err != nil {
		return false
	}
	list, err := trust.Parse(trust.Read(s.cfg.Authorities, own))
	return err == nil && c.CheckSignatureFrom(list[0]) != nil
}

// Trusted are the CAs that new connections believe.
type Trusted struct {
	PEM  []byte
	List []*x509.Certificate
	// Followed: the first, which signs, has signed the node's certificate.
	Followed bool
}

// Trusted tells what the files say now.
func (s *Server) Trusted() (t Trusted, err error) {
	c, err := s.now()
	if err != nil {
		return t, err
	}
	t.PEM = c.CA
	if t.List, err = trust.Parse(c.CA); err != nil {
		return t, err
	}
	leaf := firstCertificate(c.Cert)
	t.Followed = leaf != nil && leaf.CheckSignatureFrom(t.List[0]) == nil
	return t, nil
}
