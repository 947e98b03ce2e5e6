package kubelet

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/shoal-project/shoal/coordinator/pki"
)

// kubeletOf serves as the kubelet of a node would, with a certificate that by
// signed.
func kubeletOf(t *testing.T, by *pki.Authority, user string, ips ...net.IP) *httptest.Server {
	t.Helper()
	certPEM, keyPEM, err := by.Issue(
		pki.Spec{User: user, Groups: []string{"system:nodes"}, IPs: ips, Names: []string{"n1"}, Server: true}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].Subject.CommonName)
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequestClientCert}
	s.Config.ErrorLog = nil
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func authority(t *testing.T) (pki.Dir, *pki.Authority) {
	t.Helper()
	dir := pki.Dir(t.TempDir())
	if err := dir.Ensure(pki.Cluster{}, time.Now()); err != nil {
		t.Fatal(err)
	}
	ca, err := dir.CA()
	if err != nil {
		t.Fatal(err)
	}
	return dir, ca
}

// TestOnlyTheNodeItself: the API server talks to a kubelet only if that shows a
// certificate of the cluster's CA, for the address, of this node.
func TestOnlyTheNodeItself(t *testing.T) {
	dir, ca := authority(t)
	_, stranger := authority(t)
	roots := x509.NewCertPool()
	roots.AddCert(ca.Cert)
	config := Config{CertFile: dir.Path("apiserver-kubelet-client.crt"), KeyFile: dir.Path("apiserver-kubelet-client.key")}
	unverified := config
	config.Authorities = roots
	loopback := net.IPv4(127, 0, 0, 1)
	for _, c := range []struct {
		name   string
		config Config
		server *httptest.Server
		want   string // the error; empty: none
	}{
		{"own", config, kubeletOf(t, ca, "system:node:n1", loopback), ""},
		{"by_an_administrator", config, kubeletOf(t, ca, "kubelet", loopback), ""},
		{"of_another_node", config, kubeletOf(t, ca, "system:node:n2", loopback), `certificate is of node "n2", not of node "n1"`},
		{"of_an_api_server", config, kubeletOf(t, ca, "kube-apiserver", loopback), `certificate is of an API server, not of node "n1"`},
		{"for_another_address", config, kubeletOf(t, ca, "system:node:n1", net.IPv4(192, 0, 2, 1)), "certificate is valid for 192.0.2.1, not 127.0.0.1"},
		{"of_another_authority", config, kubeletOf(t, stranger, "system:node:n1", loopback), "unknown authority"},
		{"not_verified", unverified, kubeletOf(t, stranger, "system:node:n2"), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			transports, err := New(c.config)
			if err != nil {
				t.Fatal(err)
			}
			client := http.Client{Transport: transports.To("n1")}
			resp, err := client.Get(c.server.URL)
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					if err == nil {
						resp.Body.Close()
					}
					t.Fatalf("got %v, want %q", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if who, _ := io.ReadAll(resp.Body); string(who) != "kube-apiserver-kubelet-client" {
				t.Errorf("the kubelet sees %q", who)
			}
		})
	}
}

// TestCertificateBetweenItsFiles: while a new certificate is written the key is new and
// the certificate is not yet; the pair that was whole serves until the next one is.
func TestCertificateBetweenItsFiles(t *testing.T) {
	dir, ca := authority(t)
	roots := x509.NewCertPool()
	roots.AddCert(ca.Cert)
	const crt, key = "apiserver-kubelet-client.crt", "apiserver-kubelet-client.key"
	transports, err := New(Config{CertFile: dir.Path(crt), KeyFile: dir.Path(key), Authorities: roots})
	if err != nil {
		t.Fatal(err)
	}
	server := kubeletOf(t, ca, "system:node:n1", net.IPv4(127, 0, 0, 1))
	var shown string
	server.Config.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		shown = r.TLS.PeerCertificates[0].SerialNumber.String()
	})
	ask := func() string {
		t.Helper()
		transport := transports.To("n1").(*http.Transport)
		transport.CloseIdleConnections()
		resp, err := (&http.Client{Transport: transport}).Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return shown
	}
	first := ask()
	certPEM, keyPEM, err := ca.Issue(pki.Spec{User: "kube-apiserver-kubelet-client"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := pki.WriteFile(dir.Path(key), keyPEM, 0o600); err != nil {
		t.Fatal(err)
	}
	if between := ask(); between != first {
		t.Errorf("between the files certificate %s is shown, want %s", between, first)
	}
	if err := pki.WriteFile(dir.Path(crt), certPEM, 0o644); err != nil {
		t.Fatal(err)
	}
	if after := ask(); after == first {
		t.Error("the new certificate is not shown")
	}
}

// TestReconnect: after a renewal of the client certificate no request shows the one of
// before, which kubelets refuse once it has ended, though its connection is open still.
func TestReconnect(t *testing.T) {
	dir, ca := authority(t)
	roots := x509.NewCertPool()
	roots.AddCert(ca.Cert)
	shown := map[string]bool{}
	s := kubeletOf(t, ca, "system:node:n1", net.IPv4(127, 0, 0, 1))
	s.Config.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		shown[r.TLS.PeerCertificates[0].SerialNumber.String()] = true
	})
	transports, err := New(Config{CertFile: dir.Path("apiserver-kubelet-client.crt"),
		KeyFile: dir.Path("apiserver-kubelet-client.key"), Authorities: roots})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(want int) {
		t.Helper()
		for range 2 {
			resp, err := (&http.Client{Transport: transports.To("n1")}).Get(s.URL)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		if len(shown) != want {
			t.Fatalf("%d certificates were shown, want %d", len(shown), want)
		}
	}
	ask(1)
	if err := dir.Ensure(pki.Cluster{}, time.Now().Add(pki.CertLifetime*3/4)); err != nil {
		t.Fatal(err)
	}
	ask(1)
	transports.Reconnect()
	ask(2)
}
