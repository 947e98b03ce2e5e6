package pki

import (
	"fmt"
	"time"

	clientcmdv1 "k8s.io/client-go/tools/clientcmd/api/v1"
	"sigs.k8s.io/yaml"
)

// Kubeconfig returns a kubeconfig for server with a fresh client certificate.
func (a *Authority) Kubeconfig(server string, s Spec, now time.Time) ([]byte, error) {
	certPEM, keyPEM, err := a.Issue(s, now)
	if err != nil {
		return nil, err
	}
	const cluster = "shoal"
	name := s.User + "@" + cluster
	data, err := yaml.Marshal(clientcmdv1.Config{
		Kind:       "Config",
		APIVersion: "v1",
		Clusters: []clientcmdv1.NamedCluster{
			{Name: cluster, Cluster: clientcmdv1.Cluster{Server: server, CertificateAuthorityData: a.PEM}}},
		AuthInfos: []clientcmdv1.NamedAuthInfo{
			{Name: s.User, AuthInfo: clientcmdv1.AuthInfo{ClientCertificateData: certPEM, ClientKeyData: keyPEM}}},
		Contexts: []clientcmdv1.NamedContext{
			{Name: name, Context: clientcmdv1.Context{Cluster: cluster, AuthInfo: s.User}}},
		CurrentContext: name,
	})
	if err != nil {
		return nil, fmt.Errorf("encode kubeconfig of %s: %w", s.User, err)
	}
	return data, nil
}
