package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/shoal-project/shoal/agent/process"
	"github.com/shoal-project/shoal/coordinator/admission"
	"github.com/shoal-project/shoal/coordinator/apiserver"
	"github.com/shoal-project/shoal/coordinator/audit"
	"github.com/shoal-project/shoal/coordinator/auth"
	"github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/coordinator/encryption"
	"github.com/shoal-project/shoal/coordinator/pki"
	"github.com/shoal-project/shoal/coordinator/registry"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/store"
)

// run starts everything and returns when ctx ends and all has stopped, or when
// a part fails.
func run(ctx context.Context, cfg config.Config, log *slog.Logger) error {
	begin := time.Now()
	manager, err := process.TakeServiceManager()
	if err != nil {
		return err
	}
	unlock, err := lockState(cfg)
	if err != nil {
		return err
	}
	defer unlock()
	listener, err := listenAPI(cfg)
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }()
	advertise, err := advertiseAddress(cfg)
	if err != nil {
		return err
	}
	st, err := openState(ctx, cfg, advertise, log)
	if err != nil {
		return err
	}
	defer func() { _ = st.Close() }()
	s := parts{
		cfg:       cfg,
		log:       log,
		store:     st,
		advertise: advertise,
		port:      listener.Addr().(*net.TCPAddr).Port,
		begin:     begin,
		manager:   manager,
		ready:     make(chan struct{}),
	}
	if s.api, err = s.buildAPI(ctx, listener); err != nil {
		return err
	}
	if s.gossip, err = buildGossip(s); err != nil {
		return err
	}
	return serve(ctx, s)
}

// openState makes the keys while the store opens: both take their time.
func openState(ctx context.Context, cfg config.Config, advertise net.IP, log *slog.Logger) (*store.Store, error) {
	var st *store.Store
	var g errgroup.Group
	g.Go(func() error { return keys(cfg).Ensure(cluster(cfg, advertise), time.Now()) })
	g.Go(func() (err error) {
		st, err = store.Open(ctx, store.Config{
			Dir: filepath.Join(cfg.StateDir(), "etcd"), Log: log,
			Servers: cfg.EtcdServers, CAFile: cfg.EtcdCAFile, CertFile: cfg.EtcdCertFile, KeyFile: cfg.EtcdKeyFile,
		})
		return err
	})
	err := g.Wait()
	if err == nil {
		err = encryptStore(ctx, cfg, st, log)
	}
	if err != nil && st != nil {
		err = errors.Join(err, st.Close())
	}
	return st, err
}

// cluster is what the serving certificate must cover.
func cluster(cfg config.Config, advertise net.IP) pki.Cluster {
	c := pki.Cluster{Domain: cfg.ClusterDomain, IPs: []net.IP{advertise}}
	if prefixes, err := config.Prefixes(cfg.ServiceCIDR); err == nil {
		for _, p := range prefixes {
			c.IPs = append(c.IPs, p.Addr().Next().AsSlice())
		}
	}
	if bind := net.ParseIP(cfg.BindAddress); bind != nil && !bind.IsUnspecified() {
		c.IPs = append(c.IPs, bind)
	}
	for _, name := range cfg.ExtraNames {
		if ip := net.ParseIP(name); ip != nil {
			c.IPs = append(c.IPs, ip)
		} else {
			c.Names = append(c.Names, name)
		}
	}
	if host, err := os.Hostname(); err == nil {
		c.Names = append(c.Names, host)
	}
	return c
}

// advertiseAddress is the configured one, else the bound one, else that of the
// interface with the default route, else loopback: a machine without a network
// is a cluster of its own.
func advertiseAddress(cfg config.Config) (net.IP, error) {
	if cfg.AdvertiseAddress != "" {
		return net.ParseIP(cfg.AdvertiseAddress), nil
	}
	bind := net.ParseIP(cfg.BindAddress)
	if !bind.IsUnspecified() {
		return bind, nil
	}
	ip, err := utilnet.ResolveBindAddress(bind)
	if utilnet.IsNoRoutesError(err) || err == nil && ip == nil {
		return net.IPv4(127, 0, 0, 1), nil
	}
	if err != nil {
		return nil, fmt.Errorf("find the machine's address: %w (set --advertise-address)", err)
	}
	return ip, nil
}

// buildAPI makes the API server, then what decides for it: authentication,
// authorization and admission read objects through the server's own informers.
func (s *parts) buildAPI(ctx context.Context, listener net.Listener) (*apiserver.Server, error) {
	dir := keys(s.cfg)
	env, err := kindEnv(s.cfg, dir)
	if err != nil {
		return nil, err
	}
	recorded, err := audit.New(s.cfg.Audit, filepath.Join(s.cfg.StateDir(), "audit"), s.log)
	if err != nil {
		return nil, err
	}
	api, err := apiserver.New(apiserver.Config{
		Kinds: registry.Kinds(), Storage: s.store, Env: env, Listener: listener, ExternalAddress: s.external(), Log: s.log,
		CertFile: dir.Path("apiserver.crt"), KeyFile: dir.Path("apiserver.key"), ClientCAFile: dir.Path(pki.CAFile),
		FrontProxyCAFile:   dir.Path("front-proxy-ca.crt"),
		FrontProxyCertFile: dir.Path("front-proxy-client.crt"), FrontProxyKeyFile: dir.Path("front-proxy-client.key"),
		AuditBackend:     recorded.Backend,
		AuditRules:       recorded.Rules,
		EncryptionHealth: s.store.EncryptionHealth(),
	})
	if err != nil {
		return nil, err
	}
	a, err := buildAuth(s.cfg, dir, s.external(), s.log)
	if err != nil {
		return nil, err
	}
	s.auth = a
	if err := a.Connect(api.Client(), api.Informers()); err != nil {
		return nil, err
	}
	dynamic, err := api.Dynamic()
	if err != nil {
		return nil, fmt.Errorf("make dynamic client: %w", err)
	}
	plugins, err := admission.Chain(admission.Config{
		Client: api.Client(), Informers: api.Informers(), Authorizer: a.Authorizer, Dynamic: dynamic,
		Services: api.Services(), WebhookAuth: api.WebhookAuth(), Stop: ctx.Done(),
		Enable:     s.cfg.EnableAdmissionPlugins,
		Disable:    s.cfg.DisableAdmissionPlugins,
		ConfigFile: s.cfg.AdmissionControlConfigFile,
	})
	if err != nil {
		return nil, err
	}
	handlers := map[string]http.Handler{encryption.StatePath: encryptionState(s.store, s.otherCoordinators)}
	maps.Copy(handlers, a.Discovery)
	return api, api.Install(apiserver.Security{
		Authenticator: a.Authenticator, Authorizer: a.Authorizer, Audiences: a.Audiences, Admission: plugins,
		Rules: a.Authorizer, Tokens: a.Issuer, AuthenticateToken: a.Token, Handlers: handlers,
	})
}

func kindEnv(cfg config.Config, dir pki.Dir) (kind.Env, error) {
	services, err := config.Prefixes(cfg.ServiceCIDR)
	if err != nil {
		return kind.Env{}, fmt.Errorf("serviceCIDR: %w", err)
	}
	pods, err := config.Prefixes(cfg.ClusterCIDR)
	if err != nil {
		return kind.Env{}, fmt.Errorf("clusterCIDR: %w", err)
	}
	first, last, err := cfg.NodePorts()
	if err != nil {
		return kind.Env{}, fmt.Errorf("nodePortRange: %w", err)
	}
	kubelets, err := kubeletTransports(cfg, dir)
	if err != nil {
		return kind.Env{}, err
	}
	return kind.Env{
		ServiceCIDRs:     services,
		ClusterCIDRs:     pods,
		NodePortMin:      first,
		NodePortMax:      last,
		ClusterDomain:    cfg.ClusterDomain,
		KubeletTransport: kubelets.To,
	}, nil
}

func buildAuth(cfg config.Config, dir pki.Dir, external string, log *slog.Logger) (*auth.Auth, error) {
	signer, err := dir.ServiceAccountKey()
	if err != nil {
		return nil, err
	}
	clients, err := certPool(dir.Path(pki.CAFile))
	if err != nil {
		return nil, err
	}
	proxies, err := certPool(dir.Path("front-proxy-ca.crt"))
	if err != nil {
		return nil, err
	}
	return auth.New(auth.Config{
		ClientCAs: clients, FrontProxyCAs: proxies, FrontProxyNames: []string{"front-proxy-client"},
		Issuer: "https://kubernetes.default.svc." + cfg.ClusterDomain, SigningKey: signer, ExternalHost: external,
		Authentication: cfg.Authentication,
		Authorization:  cfg.Authorization,
		Log:            log,
	})
}

func certPool(path string) (*x509.CertPool, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("load CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("load CA %s: no certificate in it", path)
	}
	return pool, nil
}
