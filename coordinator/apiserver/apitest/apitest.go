package apitest

import (
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/group"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/shoal-project/shoal/coordinator/apiserver"
	"github.com/shoal-project/shoal/coordinator/pki"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/store"
)

// Options says how the server under test differs from the usual one: all
// requests with a certificate of the CA are allowed, no admission plugin runs.
type Options struct {
	Kinds []kind.Kind
	// Dir keeps state over several servers of one test; empty: a fresh one.
	Dir string
	// Security, when set, replaces the built-in one.
	Security func(s *apiserver.Server) (apiserver.Security, error)
	// Wrap changes the security.
	Wrap func(apiserver.Security) apiserver.Security
	// Admission are the plugins, made with the server's client and informers.
	Admission func(s *apiserver.Server) []admission.Interface
	// Encryption is an EncryptionConfiguration file; empty: none.
	Encryption string
	// Env changes what kinds are given, Config the rest of the configuration.
	Env    func(*kind.Env)
	Config func(*apiserver.Config)
}

// Server is a running API server.
type Server struct {
	*apiserver.Server
	// Storage is where it keeps objects.
	Storage *store.Store
	// Config is a client's configuration with a certificate of an administrator
	// (system:masters), over TLS.
	Config *rest.Config
	// Keys is the directory of the server's keys.
	Keys pki.Dir
	// URL is where it serves.
	URL string

	stop func()
}

// Start runs a server until the test ends, and returns when it is ready.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	s, err := start(t, o)
	if err != nil {
		t.Fatalf("start API server: %v", err)
	}
	t.Cleanup(s.Stop)
	return s
}

// Stop ends the server; the test's end does it too.
func (s *Server) Stop() { s.stop() }

// Kubernetes returns a client over TLS.
func (s *Server) Kubernetes(t testing.TB) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func start(t testing.TB, o Options) (*Server, error) {
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	log := slog.New(slog.NewTextHandler(testWriter{}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	keys := pki.Dir(o.Dir + "/pki")
	if err := keys.Ensure(pki.Cluster{Domain: "cluster.local"}, time.Now()); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	st, err := store.Open(ctx, store.Config{Dir: o.Dir + "/etcd", Log: log})
	if err != nil {
		cancel()
		return nil, err
	}
	if o.Encryption != "" {
		if err := st.Encrypt(o.Encryption, "test", log); err != nil {
			cancel()
			_ = st.Close()
			return nil, err
		}
	}
	out, run, err := build(o, keys, st, log)
	if err != nil {
		cancel()
		_ = st.Close()
		return nil, err
	}
	if err := st.WaitCaches(ctx); err != nil {
		cancel()
		return nil, err
	}
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stopped := false
	out.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		<-done
		_ = st.Close()
	}
	if err := waitReady(out, done); err != nil {
		out.stop()
		return nil, err
	}
	return out, nil
}

func build(o Options, keys pki.Dir, st *store.Store, log *slog.Logger) (*Server, func(context.Context) error, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	env := kind.Env{
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
		NodePortMin:  30000, NodePortMax: 32767,
		ClusterDomain: "cluster.local", KubeletTransport: func(string) http.RoundTripper { return http.DefaultTransport },
	}
	if o.Env != nil {
		o.Env(&env)
	}
	config := apiserver.Config{
		Kinds: o.Kinds, Storage: st, Env: env, Listener: listener, ExternalAddress: listener.Addr().String(), Log: log,
		CertFile: keys.Path("apiserver.crt"), KeyFile: keys.Path("apiserver.key"), ClientCAFile: keys.Path(pki.CAFile),
		FrontProxyCAFile: keys.Path("front-proxy-ca.crt"), FrontProxyCertFile: keys.Path("front-proxy-client.crt"),
		FrontProxyKeyFile: keys.Path("front-proxy-client.key"),
		EncryptionHealth:  st.EncryptionHealth(),
		StorageHealth:     st.Ready,
	}
	if o.Config != nil {
		o.Config(&config)
	}
	s, err := apiserver.New(config)
	if err != nil {
		return nil, nil, err
	}
	security := allowCertificates(keys)
	if o.Security != nil {
		security = o.Security
	}
	sec, err := security(s)
	if err != nil {
		return nil, nil, err
	}
	if o.Wrap != nil {
		sec = o.Wrap(sec)
	}
	if o.Admission != nil {
		sec.Admission = o.Admission(s)
	}
	if err := s.Install(sec); err != nil {
		return nil, nil, err
	}
	client, err := clientConfig(keys, listener.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	out := &Server{Server: s, Storage: st, Config: client, Keys: keys, URL: client.Host}
	return out, s.Run, nil
}

// allowCertificates authenticates by the CA and allows everything.
func allowCertificates(keys pki.Dir) func(*apiserver.Server) (apiserver.Security, error) {
	return func(*apiserver.Server) (apiserver.Security, error) {
		ca, err := keys.CA()
		if err != nil {
			return apiserver.Security{}, err
		}
		opts := x509request.DefaultVerifyOptions()
		opts.Roots = x509.NewCertPool()
		opts.Roots.AddCert(ca.Cert)
		return apiserver.Security{
			Authenticator: group.NewAuthenticatedGroupAdder(x509request.New(opts, x509request.CommonNameUserConversion)),
			Authorizer:    authorizerfactory.NewAlwaysAllowAuthorizer(),
		}, nil
	}
}

func clientConfig(keys pki.Dir, address string) (*rest.Config, error) {
	ca, err := keys.CA()
	if err != nil {
		return nil, err
	}
	cert, key, err := ca.Issue(pki.Spec{User: "admin", Groups: []string{"system:masters"}}, time.Now())
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host: "https://" + address, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: ca.PEM, CertData: cert, KeyData: key},
	}, nil
}

func waitReady(s *Server, done <-chan error) error {
	client, err := rest.HTTPClientFor(s.Config)
	if err != nil {
		return err
	}
	var last string
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		select {
		case err := <-done:
			return fmt.Errorf("ended while starting: %w", err)
		case <-time.After(10 * time.Millisecond):
		}
		resp, err := client.Get(s.URL + "/readyz?verbose")
		if err != nil {
			last = err.Error()
			continue
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return nil
		}
		last = string(body)
	}
	return fmt.Errorf("not ready: %s", last)
}

// testWriter writes logs to standard error; a test's own log must not be
// written to after its end.
type testWriter struct{}

func (testWriter) Write(p []byte) (int, error) { return os.Stderr.Write(p) }

// The libraries' notices are kept out of tests' output. klog's logger is the
// process's, and may be set before anything runs only: what an earlier test of
// the package started may still log.
func init() {
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})))
}
