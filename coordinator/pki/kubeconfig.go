package pki

import (
	"fmt"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// Kubeconfig returns a kubeconfig for server with a fresh client certificate.
func (a *Authority) Kubeconfig(server string, s Spec, now time.Time) ([]byte, error) {
	certPEM, keyPEM, err := a.Issue(s, now)
	if err != nil {
		return nil, err
	}
	const cluster = "shoal"
	name := s.User + "@" + cluster
	data, err := clientcmd.Write(api.Config{
		Clusters:       map[string]*api.Cluster{cluster: {Server: server, CertificateAuthorityData: a.PEM}},
		AuthInfos:      map[string]*api.AuthInfo{s.User: {ClientCertificateData: certPEM, ClientKeyData: keyPEM}},
		Contexts:       map[string]*api.Context{name: {Cluster: cluster, AuthInfo: s.User}},
		CurrentContext: name,
	})
	if err != nil {
		return nil, fmt.Errorf("encode kubeconfig of %s: %w", s.User, err)
	}
	return data, nil
}
