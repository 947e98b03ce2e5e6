package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/shoal-project/shoal/agent/fence"
	"github.com/shoal-project/shoal/agent/gatewayfeed"
	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/agent/policyfeed"
	"github.com/shoal-project/shoal/agent/process"
	"github.com/shoal-project/shoal/agent/reverse"
	"github.com/shoal-project/shoal/coordinator/admission"
	"github.com/shoal-project/shoal/coordinator/apiserver"
	"github.com/shoal-project/shoal/coordinator/audit"
	"github.com/shoal-project/shoal/coordinator/auth"
	"github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/coordinator/controller/apiendpoints"
	"github.com/shoal-project/shoal/coordinator/controller/persistentvolume"
	"github.com/shoal-project/shoal/coordinator/encryption"
	"github.com/shoal-project/shoal/coordinator/gatewaystream"
	"github.com/shoal-project/shoal/coordinator/joining"
	"github.com/shoal-project/shoal/coordinator/kubelet"
	"github.com/shoal-project/shoal/coordinator/leader"
	"github.com/shoal-project/shoal/coordinator/members"
	"github.com/shoal-project/shoal/coordinator/packages"
	"github.com/shoal-project/shoal/coordinator/pki"
	"github.com/shoal-project/shoal/coordinator/policystream"
	"github.com/shoal-project/shoal/coordinator/registry"
	"github.com/shoal-project/shoal/coordinator/registry/connect"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/rotation"
	"github.com/shoal-project/shoal/coordinator/scheduler"
	"github.com/shoal-project/shoal/coordinator/snapshots"
	"github.com/shoal-project/shoal/coordinator/store"
)

// parts are what runs together.
type parts struct {
	cfg       config.Config
	log       *slog.Logger
	store     *store.Store
	api       *apiserver.Server
	auth      *auth.Auth
	gossip    *gossip.Group
	gossipID  *gossip.Identity // nil: it proves nothing
	endpoints *apiendpoints.Publisher
	members   *members.Server   // nil with an outside etcd
	snapshots *snapshots.Keeper // nil with an outside etcd
	kubelets  *kubelet.Transports
	reverse   *kubelet.Reverse // has the nodes that cannot be dialled
	policies  *policystream.Hub
	gateways  *gatewaystream.Hub
	keys      *rotation.Member
	// changed is told when keys have changed that controllers sign with.
	changed   chan struct{}
	grown     chan struct{} // told when the store gets other members
	again     *again        // answers members of before a restore
	advertise net.IP
	port      int
	begin     time.Time
	manager   process.ServiceManager
	recyclers persistentvolume.Recyclers
	// ready is closed once the API is.
	ready chan struct{}
}

// run starts everything and returns when ctx ends and all has stopped, or when
// a part fails.
func run(ctx context.Context, cfg config.Config, log *slog.Logger) error {
	begin := time.Now()
	process.KeepOffProxy(cfg.ServiceCIDR, cfg.ClusterCIDR, ".svc", "."+cfg.ClusterDomain)
	applyMetrics(cfg.Metrics)
	manager, err := process.TakeServiceManager()
	if err != nil {
		return err
	}
	recyclers, err := buildRecyclers(cfg.Recycler)
	if err != nil {
		return err
	}
	unlock, err := lockState(cfg)
	if err != nil {
		return err
	}
	defer unlock()
	if m, err := readMember(cfg); err != nil || m != nil && m.Witness {
		return errors.Join(err, runWitness(ctx, cfg, m, manager, log))
	}
	listener, err := listenAPI(cfg)
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }()
	monitors, err := listenMonitors(cfg)
	if err != nil {
		return err
	}
	defer closeAll(monitors)
	advertise, err := advertiseAddress(cfg)
	if err != nil {
		return err
	}
	others := newAgain(cfg, false, advertise, log)
	st, err := openState(ctx, cfg, advertise, others, manager, log)
	if err != nil {
		return unlessStopped(ctx, err)
	}
	s := parts{
		cfg:       cfg,
		log:       log,
		store:     st,
		again:     others,
		grown:     make(chan struct{}, 1),
		advertise: advertise,
		port:      listener.Addr().(*net.TCPAddr).Port,
		begin:     begin,
		manager:   manager,
		recyclers: recyclers,
		ready:     make(chan struct{}),
		changed:   make(chan struct{}, 1),
		reverse:   &kubelet.Reverse{Log: log},
	}
	return whileStored(ctx, st, func(ctx context.Context) error {
		defer func() { _ = st.Close() }()
		return s.build(ctx, listener, monitors)
	})
}

// build makes the API and what is beside it, and serves. The API outlives its users, and
// a start that is stopped: leadership is given up through it, and its start steps need all
// of it until they are done.
func (s parts) build(ctx context.Context, listener net.Listener, monitors []net.Listener) (err error) {
	apiCtx, stopAPI := context.WithCancel(context.WithoutCancel(ctx))
	defer stopAPI()
	defer context.AfterFunc(ctx, s.reverse.Close)()
	if s.api, err = s.buildAPI(apiCtx, listener, monitors); err != nil {
		return unlessStopped(ctx, err)
	}
	if s.gossip, err = s.buildGossip(); err != nil {
		return err
	}
	defer s.gossip.Close()
	s.endpoints = &apiendpoints.Publisher{
		Client: s.api.Client(),
		Leases: s.store.Leased("apiservers", apiendpoints.TTL),
		Server: s.server(),
		Log:    s.log,
	}
	return serve(ctx, apiCtx, stopAPI, s)
}

// buildRecyclers reads the pods that empty volumes, also where this coordinator never
// leads: a file that is none is told at once.
func buildRecyclers(cfg config.Recycler) (out persistentvolume.Recyclers, err error) {
	out.HostPath = persistentvolume.Recycler{Least: cfg.PVRecyclerMinimumTimeoutHostpath,
		EachGiB: cfg.PVRecyclerTimeoutIncrementHostpath}
	out.NFS = persistentvolume.Recycler{Least: cfg.PVRecyclerMinimumTimeoutNFS,
		EachGiB: cfg.PVRecyclerIncrementTimeoutNFS}
	if file := cfg.PVRecyclerPodTemplateFilepathHostpath; file != "" {
		if out.HostPath.Template, err = persistentvolume.ReadTemplate(file); err != nil {
			return out, fmt.Errorf("pvRecyclerPodTemplateFilepathHostpath: %w", err)
		}
	}
	if file := cfg.PVRecyclerPodTemplateFilepathNFS; file != "" {
		if out.NFS.Template, err = persistentvolume.ReadTemplate(file); err != nil {
			return out, fmt.Errorf("pvRecyclerPodTemplateFilepathNFS: %w", err)
		}
	}
	return out, nil
}

// lockState takes the state directory for this process.
func lockState(cfg config.Config) (unlock func(), err error) {
	f, err := process.Lock(cfg.StateDir())
	var other *process.InUse
	if errors.As(err, &other) {
		return nil,
			fmt.Errorf(
				"use data directory %s: another coordinator (pid %s) runs on it; stop it, or choose another with --data-dir",
				cfg.DataDir, other.PID)
	}
	if err != nil {
		return nil, fmt.Errorf("use data directory %s: %w (run as root, or choose another with --data-dir)",
			cfg.DataDir, err)
	}
	return func() { _ = f.Close() }, nil
}

// openState makes the keys while the store opens: both take their time. One of several
// members needs some of the keys first, and waits until it has a vote.
func openState(
	ctx context.Context, cfg config.Config, advertise net.IP, others *again, manager process.ServiceManager,
	log *slog.Logger,
) (*store.Store, error) {
	c := store.Config{
		Dir: filepath.Join(cfg.StateDir(), "etcd"), Log: log,
		Servers: cfg.EtcdServers, CAFile: cfg.EtcdCAFile, CertFile: cfg.EtcdCertFile, KeyFile: cfg.EtcdKeyFile,
	}
	m, err := readMember(cfg)
	if err != nil {
		return nil, err
	}
	if err := joinAgain(ctx, cfg, m, advertise, manager, log); err != nil {
		return nil, err
	}
	if m != nil {
		p, err := peersOf(cfg, *m, advertise)
		if err != nil {
			return nil, err
		}
		p.Also = others
		c.Peers = &p
	}
	var st *store.Store
	var g errgroup.Group
	g.Go(func() error { return keys(cfg).Ensure(cluster(cfg, advertise), time.Now()) })
	g.Go(func() (err error) {
		st, err = store.Open(ctx, c)
		if err != nil {
			return err
		}
		others.open.Store(st)
		if m == nil {
			return nil
		}
		err = whileNotRestored(ctx, cfg, st, *c.Peers, log, func(ctx context.Context) error {
			return st.Vote(ctx, patient(manager, log))
		})
		if err == nil {
			err = joinedAgain(cfg, m)
		}
		return err
	})
	err = g.Wait()
	if err == nil {
		err = encryptStore(ctx, cfg, st, log)
	}
	if err != nil && st != nil {
		err = errors.Join(err, st.Close())
	}
	return st, err
}

// buildAPI makes the API server, then what decides for it: authentication,
// authorization and admission read objects through the server's own informers.
func (s *parts) buildAPI(
	ctx context.Context, listener net.Listener, monitors []net.Listener,
) (api *apiserver.Server, err error) {
	dir := keys(s.cfg)
	if s.kubelets, err = kubeletTransports(s.cfg, dir, s.reverse); err != nil {
		return nil, err
	}
	env, err := kindEnv(s.cfg, s.kubelets)
	if err != nil {
		return nil, err
	}
	past := connect.NewPast()
	env.PastPod = past.Pod
	leads := func(ctx context.Context) error { return leader.Leads(ctx, s.api.Client()) }
	env.Components = map[string]func(context.Context) error{
		"scheduler": leads, "controller-manager": leads, "etcd-0": s.store.Ready,
	}
	recorded, err := audit.New(s.cfg.Audit, filepath.Join(s.cfg.StateDir(), "audit"), s.log)
	if err != nil {
		return nil, err
	}
	api, err = apiserver.New(apiserver.Config{
		Kinds: registry.Kinds(), Storage: s.store, Env: env, Listener: listener, Monitors: monitors,
		ExternalAddress: s.external(), Log: s.log,
		CertFile: dir.Path("apiserver.crt"), KeyFile: dir.Path("apiserver.key"), ClientCAFile: dir.Path(pki.CAFile),
		FrontProxyCAFile:   dir.Path("front-proxy-ca.crt"),
		FrontProxyCertFile: dir.Path("front-proxy-client.crt"), FrontProxyKeyFile: dir.Path("front-proxy-client.key"),
		AuditBackend:      recorded.Backend,
		AuditRules:        recorded.Rules,
		EncryptionHealth:  s.store.EncryptionHealth(),
		StorageHealth:     s.store.Ready,
		Flags:             flagValues(s.cfg),
		RuntimeConfig:     s.cfg.RuntimeConfig,
		TracingConfigFile: s.cfg.TracingConfigFile,
		Profiling:         s.cfg.Profiling,
		DisabledMetrics:   s.cfg.DisabledMetrics,
	})
	if err != nil {
		return nil, err
	}
	server := api
	defer func() {
		if err != nil {
			server.Close()
		}
	}()
	a, err := buildAuth(s.cfg, dir, s.external(), s.log)
	if err != nil {
		return nil, err
	}
	s.auth = a
	if err := a.Connect(api.Client(), api.Informers()); err != nil {
		return nil, err
	}
	if _, err := api.Informers().Core().V1().Pods().Informer().AddEventHandler(past.Handler()); err != nil {
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

		WhenIsolated: fence.Policy(s.cfg.WhenIsolated),
		// Nodes listen to any coordinator.
		PoliciesIdle: func() bool { return s.store.Alone() && s.policies.Idle() },
	})
	if err != nil {
		return nil, err
	}
	s.api = api // what others are answered from
	if s.keys, err = s.newKeys(); err != nil {
		return nil, err
	}
	handlers := map[string]http.Handler{
		rotation.Path:        s.keys,
		encryption.StatePath: encryptionState(s.store, s.otherCoordinators),
	}
	maps.Copy(handlers, a.Discovery)
	if s.store.Embedded() {
		s.members = s.newMembers()
		handlers[members.Path] = s.members
		if s.snapshots, err = s.newKeeper(); err != nil {
			return nil, err
		}
		handlers[snapshots.Path] = s.snapshots
	}
	handlers[packages.Path] = &packages.Shelf{
		Dir: filepath.Join(s.cfg.StateDir(), "packages"), Max: packages.MaxSize, Log: s.log,
	}
	maps.Copy(handlers, joining.Handlers(s.joining(dir, api.Client())))
	if s.policies, err = policystream.New(api.Informers(), dynamic, s.log); err != nil {
		return nil, err
	}
	if s.gateways, err = newGateways(api, s.log); err != nil {
		return nil, err
	}
	handlers[scheduler.ResourcesPath] = scheduler.Resources(api.Informers().Core().V1().Pods().Lister())
	return api, api.Install(apiserver.Security{
		Authenticator: a.Authenticator, Authorizer: a.Authorizer, Audiences: a.Audiences, Admission: plugins,
		Rules: a.Authorizer, Tokens: a.Issuer, AuthenticateToken: a.Token, Handlers: handlers,
		Streams: map[string]http.Handler{
			policyfeed.Path: s.policies, gatewayfeed.Path: s.gateways, reverse.Path: s.reverse,
		},
	})
}

func kindEnv(cfg config.Config, kubelets *kubelet.Transports) (kind.Env, error) {
	services, err := config.Prefixes(cfg.ServiceCIDR)
	if err != nil {
		return kind.Env{}, fmt.Errorf("serviceCIDR: %w", err)
	}
	pods, err := cfg.PodRanges()
	if err != nil {
		return kind.Env{}, fmt.Errorf("clusterCIDR: %w", err)
	}
	first, last, err := cfg.NodePorts()
	if err != nil {
		return kind.Env{}, fmt.Errorf("nodePortRange: %w", err)
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

// kubeletTransports shows the API server's client certificate to kubelets, and
// verifies theirs unless the configuration says otherwise.
func kubeletTransports(cfg config.Config, dir pki.Dir, reverse *kubelet.Reverse) (*kubelet.Transports, error) {
	c := kubelet.Config{
		CertFile: dir.Path("apiserver-kubelet-client.crt"),
		KeyFile:  dir.Path("apiserver-kubelet-client.key"),
		Reverse:  reverse,
	}
	file := cfg.KubeletCertificateAuthority
	if file == "" {
		file = dir.Path(pki.CAFile)
	}
	if file != config.KubeletsUnverified {
		var err error
		if c.Authorities, err = certPool(file); err != nil {
			return nil, fmt.Errorf("kubeletCertificateAuthority: %w", err)
		}
	}
	return kubelet.New(c)
}

func buildAuth(cfg config.Config, dir pki.Dir, external string, log *slog.Logger) (*auth.Auth, error) {
	files, err := dir.ReadFiles(pki.ServiceAccounts.Files...)
	if err != nil {
		return nil, err
	}
	signer, accepted, err := files.ServiceAccountKeys()
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
		Issuer: "https://kubernetes.default.svc." + cfg.ClusterDomain, SigningKey: signer, VerifyKeys: accepted,
		ExternalHost:   external,
		Authentication: cfg.Authentication,
		Authorization:  cfg.Authorization,
		Log:            log,
	})
}
