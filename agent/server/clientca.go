package server

import (
	"crypto/x509"
	"fmt"
	"os"
)

// ClientCAs are the authorities whose certificates callers may show: those of a
// file, or else the cluster's, PEM; none when both are empty.
func ClientCAs(file string, cluster []byte) (*x509.CertPool, error) {
	data := cluster
	if file != "" {
		var err error
		if data, err = os.ReadFile(file); err != nil {
			return nil, fmt.Errorf("client CA: %w", err)
		}
	}
	pool := x509.NewCertPool()
	if len(data) > 0 && !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("client CA %s: no certificate in it", file)
	}
	return pool, nil
}
