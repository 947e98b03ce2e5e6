package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/shoal-project/shoal/coordinator/pki"
)

const requestsPath = "/apis/certificates.k8s.io/v1/certificatesigningrequests"

// signPatience is how long a request may wait: the coordinator that leads answers at
// once, and another takes its place within that time.
const signPatience = time.Minute

// signingRequest is a CertificateSigningRequest.
type signingRequest struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   objectName     `json:"metadata"`
	Spec       signingSpec    `json:"spec"`
	Status     *signingStatus `json:"status,omitempty"`
}

type signingSpec struct {
	Request    []byte   `json:"request"`
	SignerName string   `json:"signerName"`
	Usages     []string `json:"usages"`
}

type signingStatus struct {
	Certificate []byte `json:"certificate"`
	Conditions  []struct{ Type, Reason, Message string }
}

// joiningKey is the key of the node's certificate, kept until it has one: who tries
// again after a crash asks the same request again, which costs the token nothing.
func joiningKey(file string) (*ecdsa.PrivateKey, []byte, error) {
	data, err := os.ReadFile(file)
	if err == nil {
		if block, _ := pem.Decode(data); block != nil {
			if key, err := x509.ParseECPrivateKey(block.Bytes); err == nil {
				return key, data, nil
			}
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	data = pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	return key, data, pki.WriteFile(file, data, 0o600)
}

// newSigningRequest asks for a node's client certificate. Its name is of the key and
// of the token.
func newSigningRequest(key *ecdsa.PrivateKey, node, token string) (signingRequest, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}},
	}, key)
	if err != nil {
		return signingRequest{}, err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return signingRequest{}, err
	}
	sum := sha256.Sum256(fmt.Appendf(public, "%s %s", node, token))
	return signingRequest{
		APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest",
		Metadata: objectName{"node-csr-" + hex.EncodeToString(sum[:20])},
		Spec: signingSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: "kubernetes.io/kube-apiserver-client-kubelet",
			Usages:     []string{"digital signature", "client auth"},
		},
	}, nil
}

// errDenied is a request that was refused: the same is not asked again.
var errDenied = errors.New("the cluster refuses this machine")

// sign has the cluster sign a request, and waits for it.
func sign(ctx context.Context, client *api, r signingRequest) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, signPatience)
	defer cancel()
	err := client.do(ctx, http.MethodPost, requestsPath, r, nil)
	if err != nil && !answered(err, http.StatusConflict) { // of an earlier try
		return nil, fmt.Errorf("ask for a certificate: %w", err)
	}
	for {
		cert, err := watchRequest(ctx, client, r.Metadata.Name)
		if cert != nil || errors.Is(err, errDenied) {
			return cert, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the cluster has not signed the certificate request %s within %s: no coordinator leads, or its "+
				"certificate controller is held up; see its log, and try again", r.Metadata.Name, signPatience)
		case <-time.After(200 * time.Millisecond): // the watch ended early: the server restarts
		}
	}
}

func watchRequest(ctx context.Context, client *api, name string) ([]byte, error) {
	body, err := client.get(ctx, requestsPath+"?watch=true&fieldSelector="+url.QueryEscape("metadata.name="+name))
	if err != nil {
		return nil, err
	}
	defer body.Close()
	for in := json.NewDecoder(bufio.NewReader(io.LimitReader(body, maxAnswer))); ; {
		var event struct{ Object signingRequest }
		if err := in.Decode(&event); err != nil {
			return nil, err
		}
		status := event.Object.Status
		if status == nil {
			continue
		}
		if len(status.Certificate) > 0 {
			return status.Certificate, nil
		}
		for _, c := range status.Conditions {
			if c.Type == "Denied" || c.Type == "Failed" {
				return nil, fmt.Errorf("%w: %s", errDenied, c.Message)
			}
		}
	}
}
