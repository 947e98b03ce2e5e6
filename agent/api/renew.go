package api

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	cryptorand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/certificate"
	"k8s.io/client-go/util/certificate/csr"
	"k8s.io/client-go/util/keyutil"
)

const (
	nodeUser = "system:node:"
	// maxRotated bounds the file.
	maxRotated = 64 << 10
	// openTime is how long a request is waited for: then another one is made, for a
	// request may have been deleted.
	openTime = 15 * time.Minute
	// A request that failed is made again after firstPause, doubled up to lastPause.
	firstPause = time.Second
	lastPause  = time.Minute
	// backdate is by how much a signer lets certificates begin before they are made.
	backdate = 5 * time.Minute
	// lookEvery is how long a wait is at most: the clock may be set meanwhile.
	lookEvery = time.Hour
)

// Renew asks the cluster for the node's next client certificate when 70 to 90 % of the
// life of the one in use are over, until ctx ends. New connections use it at once.
func (s *Server) Renew(ctx context.Context) error {
	if s.way == nil || s.cfg.Rotated == "" {
		<-ctx.Done()
		return nil
	}
	var leaf *x509.Certificate
	var due time.Time
	var pause time.Duration
	for {
		if c := s.leaf(); leaf == nil || c == nil || !c.Equal(leaf) {
			leaf, due = c, s.renewAt(c)
		}
		wait := min(time.Until(due), lookEvery)
		if wait <= 0 {
			if err := s.renew(ctx, leaf); err == nil {
				pause = 0
				continue
			} else if ctx.Err() == nil {
				s.tellRenewal(err, leaf)
			}
			pause = min(max(2*pause, firstPause), lastPause)
			wait = pause
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.replaced:
			leaf = nil // the CA may be another one, which asks for another time
		case <-time.After(wait):
		}
	}
}

func (s *Server) tellRenewal(err error, leaf *x509.Certificate) {
	if s.cfg.Failed != nil {
		s.cfg.Failed()
	}
	s.cfg.Log.Warn("the node's client certificate is not renewed yet; the agent tries on", "ends",
		leaf.NotAfter.Format(time.RFC3339), "err", err)
}

// renewAt chooses the time as upstream's kubelet does, so that nodes that joined
// together do not ask together; far away for what is no certificate of this node.
func (s *Server) renewAt(c *x509.Certificate) time.Time {
	if c == nil || c.Subject.CommonName != nodeUser+s.cfg.NodeName {
		return time.Now().AddDate(1000, 0, 0)
	}
	if s.outdated(c) {
		return time.Now()
	}
	begin := c.NotBefore
	if backdated := begin.Add(backdate); backdated.Before(c.NotAfter) {
		begin = backdated // else a life of minutes would be over from the start
	}
	life := c.NotAfter.Sub(begin)
	return begin.Add(time.Duration(float64(life) * (0.7 + 0.2*rand.Float64())))
}

// leaf is the certificate in use.
func (s *Server) leaf() *x509.Certificate {
	t := s.way.current.Load()
	if len(t.TLSClientConfig.Certificates) == 0 {
		return nil
	}
	c, err := x509.ParseCertificate(t.TLSClientConfig.Certificates[0].Certificate[0])
	if err != nil {
		return nil
	}
	return c
}

// renew makes a key, has the cluster sign a certificate for it, and takes that in the
// place of old.
func (s *Server) renew(ctx context.Context, old *x509.Certificate) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), cryptorand.Reader)
	if err != nil {
		return err
	}
	request, err := cert.MakeCSRFromTemplate(key, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: nodeUser + s.cfg.NodeName, Organization: []string{"system:nodes"}},
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	name, uid, err := csr.RequestCertificateWithContext(ctx, s.Client, request, "",
		certificatesv1.KubeAPIServerClientKubeletSignerName, nil, certificate.DefaultKubeletClientGetUsages(key), key)
	if err != nil {
		return err
	}
	certPEM, err := csr.WaitForCertificate(ctx, s.Client, name, uid)
	if err != nil {
		return err
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return err
	}
	pair := append(slices.Clone(certPEM), keyPEM...)
	if _, err := tls.X509KeyPair(pair, pair); err != nil {
		return fmt.Errorf("the cluster signed something else: %w", err)
	}
	if err := s.keepBefore(); err != nil {
		return err
	}
	if err := replaceFile(s.cfg.Rotated, pair); err != nil {
		return err
	}
	if err := s.reload(); err != nil {
		return err
	}
	next := s.leaf()
	if next == nil || next.Equal(old) {
		return errors.New("the signed certificate does not follow the one in use: it has another name or CA, or began before")
	}
	if s.outdated(next) {
		return errors.New("the cluster has signed with the CA that goes")
	}
	s.cfg.Log.Info("the node has its next client certificate", "file", s.cfg.Rotated, "ends",
		next.NotAfter.Format(time.RFC3339))
	return nil
}

// rotated is the certificate of the file with its key, if it counts more than the
// kubeconfig's: of the same name and CA, and begun later.
func rotated(file string, c Credentials) []byte {
	own := firstCertificate(c.Cert)
	f, err := os.Open(file)
	if err != nil || own == nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxRotated))
	if err != nil {
		return nil
	}
	pair, err := tls.X509KeyPair(data, data)
	if err != nil {
		return nil
	}
	leaf := pair.Leaf
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.CA)
	_, err = leaf.Verify(x509.VerifyOptions{
		Roots: roots, CurrentTime: leaf.NotBefore, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil || leaf.Subject.CommonName != own.Subject.CommonName || !leaf.NotBefore.After(own.NotBefore) {
		return nil
	}
	return data
}
