package api

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shoal-project/shoal/agent/trust"
)

// CheckCertificate reads a kubeconfig file and the files of the certificate and of the CAs
// that came after it, and tells a client certificate that is not valid at now; no file is no
// error.
func CheckCertificate(kubeconfig, rotatedFile, casFile string, now time.Time) error {
	if kubeconfig == "" {
		return nil
	}
	rc, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err == nil {
		err = rest.LoadTLSFiles(rc)
	}
	if err != nil {
		return fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	block, _ := pem.Decode(rc.CertData)
	if block == nil {
		return nil
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return fmt.Errorf("kubeconfig %s: client certificate: %w", kubeconfig, err)
	}
	cas := rc.CAData
	if now := trust.Read(casFile, cas); now != nil {
		cas = now
	}
	if next := rotated(rotatedFile, Credentials{Cert: rc.CertData, CA: cas}); next != nil {
		cert, kubeconfig = firstCertificate(next), rotatedFile
	}
	if now.After(cert.NotAfter) {
		return fmt.Errorf("%s: the client certificate of %s expired on %s: join again with a new token (shoal join), "+
			"or make a new kubeconfig with shoal-coordinator kubeconfig",
			kubeconfig, cert.Subject.CommonName, cert.NotAfter.Format(time.RFC3339))
	}
	return nil
}

// firstCertificate is the first in PEM text; nil for none.
func firstCertificate(data []byte) *x509.Certificate {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil
	}
	return c
}
