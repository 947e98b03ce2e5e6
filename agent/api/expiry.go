package api

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// CheckCertificate reads a kubeconfig file and tells a client certificate that
// is not valid at now; no file is no error.
func CheckCertificate(kubeconfig string, now time.Time) error {
	if kubeconfig == "" {
		return nil
	}
	rc, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	data := rc.CertData
	if len(data) == 0 && rc.CertFile != "" {
		if data, err = os.ReadFile(rc.CertFile); err != nil {
			return fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
		}
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return fmt.Errorf("kubeconfig %s: client certificate: %w", kubeconfig, err)
	}
	if now.After(cert.NotAfter) {
		return fmt.Errorf("kubeconfig %s: the client certificate of %s expired on %s: make a new one with shoal-coordinator kubeconfig",
			kubeconfig, cert.Subject.CommonName, cert.NotAfter.Format(time.RFC3339))
	}
	return nil
}
