package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	agentconfig "github.com/shoal-project/shoal/agent/config"
)

// kubeconfig is what this command needs of a kubeconfig file.
type kubeconfig struct {
	Clusters []struct {
		Cluster struct {
			Server                   string `json:"server"`
			CertificateAuthorityData string `json:"certificate-authority-data"`
		} `json:"cluster"`
	} `json:"clusters"`
	Users []struct {
		User struct {
			ClientCertificateData string `json:"client-certificate-data"`
			ClientKeyData         string `json:"client-key-data"`
		} `json:"user"`
	} `json:"users"`
}

// api is a minimal client: the supervisor stays resident, so it links nothing
// of client-go but a kubeconfig's types.
type api struct {
	server string
	http   *http.Client
}

func connect(file string) (*api, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var k kubeconfig
	if err := yaml.Unmarshal(data, &k); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(k.Clusters) == 0 || len(k.Users) == 0 {
		return nil, fmt.Errorf("%s names no cluster and user; delete it and run `shoal up` again", file)
	}
	var pems [3][]byte
	for i, text := range []string{k.Clusters[0].Cluster.CertificateAuthorityData, k.Users[0].User.ClientCertificateData,
		k.Users[0].User.ClientKeyData} {
		if pems[i], err = base64.StdEncoding.DecodeString(text); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	cert, err := tls.X509KeyPair(pems[1], pems[2])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pems[0])
	return &api{server: k.Clusters[0].Cluster.Server, http: &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}},
	}}}, nil
}

func (a *api) get(ctx context.Context, path string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.server+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		_ = resp.Body.Close()
		return nil, fmt.Errorf("GET %s: %s: %s", path, resp.Status, body)
	}
	return resp.Body, nil
}

func (a *api) read(ctx context.Context, path string, into any) error {
	body, err := a.get(ctx, path)
	if err != nil {
		return err
	}
	defer body.Close()
	return json.NewDecoder(body).Decode(into)
}

// object is the little of any API object that is shown here.
type object struct {
	Metadata struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	Status struct {
		Phase      string `json:"phase"`
		Conditions []struct {
			Type, Status, Reason, Message string
		} `json:"conditions"`
		NodeInfo struct {
			KubeletVersion          string `json:"kubeletVersion"`
			ContainerRuntimeVersion string `json:"containerRuntimeVersion"`
		} `json:"nodeInfo"`
	} `json:"status"`
}

func (o *object) is(condition string) bool {
	for _, c := range o.Status.Conditions {
		if c.Type == condition {
			return c.Status == "True"
		}
	}
	return false
}

// lacksNetwork holds for a Node that waits for nothing but a pod network.
func (o *object) lacksNetwork() bool {
	for _, c := range o.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "False" && strings.Contains(c.Message, "NetworkReady=false")
		}
	}
	return false
}

// waitReady returns when the node is Ready, or only lacks the pod network that
// somebody is to bring.
func waitReady(ctx context.Context, o *options) error {
	client, err := connect(o.kubeconfig())
	if err != nil {
		return err
	}
	var last error
	for {
		ready, err := watchReady(ctx, client, o)
		if ready {
			return nil
		}
		if err != nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return errors.Join(
				fmt.Errorf("node %s is not Ready after %s; see %s", o.NodeName, startTimeout,
					o.path("log", "agent.log")), last)
		case <-time.After(20 * time.Millisecond): // the watch ended early: the server restarts
		}
	}
}

// watchReady follows the Node until waitReady has what it waits for or the watch ends.
func watchReady(ctx context.Context, client *api, o *options) (bool, error) {
	body, err := client.get(ctx, "/api/v1/nodes?watch=true&fieldSelector=metadata.name%3D"+o.NodeName)
	if err != nil {
		return false, err
	}
	defer body.Close()
	for in := json.NewDecoder(bufio.NewReader(body)); ; {
		var event struct{ Object object }
		if err := in.Decode(&event); err != nil {
			return false, err
		}
		if event.Object.is("Ready") || o.PodNetwork == agentconfig.NoNetwork && event.Object.lacksNetwork() {
			return true, nil
		}
	}
}

// nodeIP is the address of --node-ip, or that of the default route; "" when
// the machine has none.
func nodeIP(o *options) string {
	if o.NodeIP != "" {
		return o.NodeIP
	}
	conn, err := net.Dial("udp", "198.51.100.1:9") // no packet is sent; the kernel picks the source
	if err != nil {
		return ""
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).IP.String()
}
