package api

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
)

// signing is a cluster that signs what nodes ask for, as soon as they do.
func (ca *testCA) signing(asked chan<- string) *fake.Clientset {
	client := fake.NewClientset()
	const resource = "certificatesigningrequests"
	client.PrependReactor("create", resource, func(a clienttesting.Action) (bool, runtime.Object, error) {
		request := a.(clienttesting.CreateAction).GetObject().(*certificatesv1.CertificateSigningRequest)
		request.Name = request.GenerateName + "1"
		block, _ := pem.Decode(request.Spec.Request)
		parsed, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			return true, nil, err
		}
		request.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{
			{Type: certificatesv1.CertificateApproved, Status: "True"}}
		request.Status.Certificate = ca.sign(parsed.PublicKey, func(c *x509.Certificate) {
			c.Subject, c.ExtKeyUsage = parsed.Subject, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
			c.NotBefore = time.Now().Add(-time.Minute)
		})
		asked <- parsed.Subject.CommonName
		return false, nil, nil // keep it, for who waits reads it
	})
	return client
}

// TestRenew: what is near its end is replaced in the file and in new connections, once.
func TestRenew(t *testing.T) {
	ca := newCA(t)
	shown := make(chan int64, 1)
	server := ca.server("", func(w http.ResponseWriter, r *http.Request) {
		shown <- r.TLS.PeerCertificates[0].SerialNumber.Int64()
		node(w, "n1")
	})
	dir := t.TempDir()
	old, key := ca.client("n1", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(time.Minute) })
	kubeconfig, file := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "kubelet-client.pem")
	for name, data := range map[string][]byte{"cert": old, "key": key, "ca": ca.pem, "kubeconfig": []byte(
		"apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n" +
			"users: [{name: u, user: {client-certificate: cert, client-key: key}}]\n" +
			"clusters: [{name: c, cluster: {server: '" + server.URL + "', certificate-authority: ca}}]\n")} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rc, err := Load(kubeconfig, "test")
	if err != nil {
		t.Fatal(err)
	}
	rc.ContentConfig = rest.ContentConfig{} // JSON
	connect := func() *Server {
		s, err := Connect(Config{Rest: rc, Kubeconfig: kubeconfig, NodeName: "n1", Rotated: file,
			Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := connect()
	asked := make(chan string, 8)
	real := s.Client
	s.Client = ca.signing(asked)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Renew(ctx) }()
	if name := <-asked; name != "system:node:n1" {
		t.Errorf("asked for %s", name)
	}
	told := make(chan Credentials, 1)
	go func() { _ = s.Follow(ctx, func(c Credentials) error { told <- c; return nil }) }()
	next := firstCertificate((<-told).Cert)
	if next == nil || next.Equal(firstCertificate(old)) {
		t.Fatal("others are not told of the new one")
	}
	s.Client = real
	wants(t, s, "n1")
	if got := <-shown; got != next.SerialNumber.Int64() {
		t.Errorf("certificate %d was shown, want %d", got, next.SerialNumber)
	}
	again := connect() // a restart
	wants(t, again, "n1")
	if got := <-shown; got != next.SerialNumber.Int64() || !again.CertificateEnd().Equal(next.NotAfter) {
		t.Errorf("certificate %d was shown after a restart, want %d", got, next.SerialNumber)
	}
	if err := CheckCertificate(kubeconfig, file, "", time.Now().Add(10*time.Minute)); err != nil {
		t.Errorf("the kubeconfig's certificate, which ended, counts: %v", err)
	}
	cancel()
	if err := <-ended; err != nil || len(asked) > 0 {
		t.Errorf("%d more requests, %v", len(asked), err)
	}
}
