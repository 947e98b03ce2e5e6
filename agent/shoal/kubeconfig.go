package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"
)

// kubeconfig is what this command needs of a kubeconfig file.
type kubeconfig struct {
	Kind           string         `json:"kind,omitempty"`
	APIVersion     string         `json:"apiVersion,omitempty"`
	Clusters       []namedCluster `json:"clusters"`
	Users          []namedUser    `json:"users"`
	Contexts       []namedContext `json:"contexts,omitempty"`
	CurrentContext string         `json:"current-context,omitempty"`
}

type namedCluster struct {
	Name    string  `json:"name"`
	Cluster cluster `json:"cluster"`
}

type cluster struct {
	Server                   string `json:"server"`
	TLSServerName            string `json:"tls-server-name,omitempty"`
	CertificateAuthority     string `json:"certificate-authority,omitempty"`
	CertificateAuthorityData string `json:"certificate-authority-data,omitempty"`
}

type namedUser struct {
	Name string  `json:"name"`
	User account `json:"user"`
}

type account struct {
	ClientCertificate     string `json:"client-certificate,omitempty"`
	ClientCertificateData string `json:"client-certificate-data,omitempty"`
	ClientKey             string `json:"client-key,omitempty"`
	ClientKeyData         string `json:"client-key-data,omitempty"`
}

type namedContext struct {
	Name    string          `json:"name"`
	Context kubecontextPair `json:"context"`
}

type kubecontextPair struct {
	Cluster string `json:"cluster"`
	User    string `json:"user"`
}

// parseKubeconfig reads a kubeconfig whose first cluster and user are those that
// count; file names it in errors, and is where the files that it names are beside.
func parseKubeconfig(data []byte, file string) (*kubeconfig, error) {
	k := &kubeconfig{}
	if err := yaml.Unmarshal(data, k); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(k.Clusters) == 0 || len(k.Users) == 0 {
		return nil, fmt.Errorf("%s names no cluster and user", file)
	}
	return k, nil
}

// identity is whom the first user is, and what the first cluster's CA is, in PEM.
type identity struct{ cert, key, ca []byte }

func (k *kubeconfig) identity(file string) (id identity, err error) {
	user, cluster := k.Users[0].User, k.Clusters[0].Cluster
	for _, part := range []struct {
		into       *[]byte
		data, path string
	}{
		{&id.cert, user.ClientCertificateData, user.ClientCertificate},
		{&id.key, user.ClientKeyData, user.ClientKey},
		{&id.ca, cluster.CertificateAuthorityData, cluster.CertificateAuthority},
	} {
		if part.data == "" && part.path != "" {
			if !filepath.IsAbs(part.path) {
				part.path = filepath.Join(filepath.Dir(file), part.path)
			}
			*part.into, err = os.ReadFile(part.path)
		} else {
			*part.into, err = base64.StdEncoding.DecodeString(part.data)
		}
		if err != nil {
			return id, fmt.Errorf("%s: %w", file, err)
		}
	}
	return id, nil
}

// newKubeconfig is that of a user of a cluster, all in one file.
func newKubeconfig(server, serverName, user string, id identity) ([]byte, error) {
	const name = "shoal"
	encode := base64.StdEncoding.EncodeToString
	return yaml.Marshal(kubeconfig{
		Kind: "Config", APIVersion: "v1",
		Clusters: []namedCluster{{name, cluster{
			Server: server, TLSServerName: serverName, CertificateAuthorityData: encode(id.ca),
		}}},
		Users: []namedUser{{user, account{
			ClientCertificateData: encode(id.cert), ClientKeyData: encode(id.key),
		}}},
		Contexts:       []namedContext{{user + "@" + name, kubecontextPair{name, user}}},
		CurrentContext: user + "@" + name,
	})
}

// connect is a client by a kubeconfig file.
func connect(file string) (*api, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	k, err := parseKubeconfig(data, file)
	if err != nil {
		return nil, fmt.Errorf("%w; delete it and run `shoal up` again", err)
	}
	id, err := k.identity(file)
	if err != nil {
		return nil, err
	}
	return connectAs(k.Clusters[0].Cluster.Server, k.Clusters[0].Cluster.TLSServerName, id, file)
}

// connectAs is a client of a server; about names the identity in errors.
func connectAs(server, serverName string, id identity, about string) (*api, error) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(id.ca)
	conf := &tls.Config{RootCAs: roots, ServerName: serverName}
	if len(id.cert) > 0 {
		cert, err := tls.X509KeyPair(id.cert, id.key)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", about, err)
		}
		conf.Certificates = []tls.Certificate{cert}
	}
	return &api{server: server, http: &http.Client{Transport: &http.Transport{TLSClientConfig: conf}}}, nil
}
