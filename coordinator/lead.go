package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/agent/process"
	"github.com/shoal-project/shoal/coordinator/apiserver"
	"github.com/shoal-project/shoal/coordinator/auth"
	"github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/coordinator/controller/clusterdns"
	"github.com/shoal-project/shoal/coordinator/leader"
	"github.com/shoal-project/shoal/coordinator/pki"
	"github.com/shoal-project/shoal/coordinator/scheduler"
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
	advertise net.IP
	port      int
	begin     time.Time
	manager   process.ServiceManager
	// ready is closed once the API is.
	ready chan struct{}
}

// external is host:port of the API as others reach it.
func (s parts) external() string {
	return net.JoinHostPort(s.advertise.String(), strconv.Itoa(s.port))
}

// serve runs the API and its users. The API outlives them: leadership is given
// up through it.
func serve(ctx context.Context, s parts) error {
	if err := s.addStartSteps(); err != nil {
		return err
	}
	if err := s.store.CheckEncryption(ctx); err != nil {
		return err
	}
	if err := s.store.WaitCaches(ctx); err != nil {
		return err
	}
	apiCtx, stopAPI := context.WithCancel(context.WithoutCancel(ctx))
	defer stopAPI()
	s.api.Informers().Start(apiCtx.Done())
	users, running := errgroup.WithContext(ctx)
	apiEnded := make(chan error, 1)
	go func() {
		defer close(apiEnded)
		apiEnded <- s.api.Run(apiCtx)
	}()
	users.Go(func() error { return announce(running, s) })
	users.Go(func() error { return s.gossip.Run(running) })
	users.Go(func() error { return s.store.FollowEncryption(running) })
	users.Go(func() error {
		select {
		case <-s.ready:
			s.encryptClear(running)
		case <-running.Done():
		}
		return nil
	})
	users.Go(func() error {
		renewKeys(running, s)
		return nil
	})
	users.Go(func() error {
		s.auth.FollowIssuers(running)
		return nil
	})
	users.Go(func() error {
		s.auth.FollowAuthorizers(running)
		return nil
	})
	users.Go(func() error {
		process.GatherTimers(running)
		return nil
	})
	users.Go(func() error {
		process.Trim(running)
		return nil
	})
	users.Go(func() error {
		select {
		case <-s.ready:
		case <-running.Done():
			return nil
		}
		return leader.Elector{Client: s.api.Client(), Identity: identity(), Log: s.log}.Run(running, func(ctx context.Context) error {
			return s.lead(ctx, apiCtx)
		})
	})
	users.Go(func() error {
		select {
		case <-running.Done():
			return nil
		case err := <-s.store.Err():
			return fmt.Errorf("store: %w", err)
		case err := <-apiEnded:
			return fmt.Errorf("API server ended: %w", err)
		}
	})
	err := users.Wait()
	stopAPI()
	return errors.Join(err, <-apiEnded)
}

// renewKeys looks once a day for certificates that end in some months; the
// server reads changed files by itself.
func renewKeys(ctx context.Context, s parts) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(24 * time.Hour):
		}
		if err := keys(s.cfg).Ensure(cluster(s.cfg, s.advertise), time.Now()); err != nil {
			s.log.Warn("certificates could not be renewed", "err", err)
		}
	}
}

// addStartSteps adds what the API needs before it is ready.
func (s parts) addStartSteps() error {
	dir := keys(s.cfg)
	clientCA, err := os.ReadFile(dir.Path(pki.CAFile))
	if err != nil {
		return fmt.Errorf("load CA: %w", err)
	}
	frontCA, err := os.ReadFile(dir.Path("front-proxy-ca.crt"))
	if err != nil {
		return fmt.Errorf("load CA: %w", err)
	}
	if err := s.api.OnStart("rbac-bootstrap-policy", func(ctx context.Context) error {
		return auth.EnsureBootstrapPolicy(ctx, s.api.Client())
	}); err != nil {
		return err
	}
	return s.api.OnStart("system-objects", func(ctx context.Context) error {
		err := apiserver.EnsureSystem(ctx, s.api.Client(), apiserver.System{
			Address: s.advertise, Port: s.port, ServiceIP: serviceIP(s.cfg), ServiceCIDRs: serviceCIDRs(s.cfg),
			ClientCA: clientCA, FrontProxyCA: frontCA, FrontProxyNames: []string{"front-proxy-client"},
		})
		if err != nil {
			return err
		}
		// Before anybody else can ask for its address. Where somebody has it
		// since an earlier version, the controller tells them.
		if err := clusterdns.Ensure(ctx, s.api.Client(), s.cfg.ClusterDNS); !apierrors.IsInvalid(err) {
			return err
		}
		return nil
	})
}

// serviceIP is the first address of the service range, the API's own.
func serviceIP(cfg config.Config) net.IP {
	prefixes, err := config.Prefixes(cfg.ServiceCIDR)
	if err != nil || len(prefixes) == 0 {
		return nil
	}
	return prefixes[0].Addr().Next().AsSlice()
}

// serviceCIDRs are the configured ranges of cluster IPs.
func serviceCIDRs(cfg config.Config) (out []string) {
	prefixes, err := config.Prefixes(cfg.ServiceCIDR)
	if err != nil {
		return nil // the API server is not built then
	}
	for _, p := range prefixes {
		out = append(out, p.Masked().String())
	}
	return out
}

// identity is stable over restarts of the coordinator on one machine.
func identity() string {
	host, err := os.Hostname()
	if err != nil {
		return "coordinator"
	}
	return host
}

// lead runs what only one coordinator does: the scheduler and the controllers.
// Their informers live as long as process, for the next term.
func (s parts) lead(ctx, process context.Context) error {
	list, err := s.leaders(process)
	if err != nil {
		return err
	}
	s.api.Informers().Start(process.Done())
	g, leading := errgroup.WithContext(ctx)
	for _, r := range list {
		g.Go(func() error {
			if err := r.Run(leading); err != nil && leading.Err() == nil {
				return fmt.Errorf("%s: %w", r.Name(), err)
			}
			return nil
		})
	}
	return g.Wait()
}

func (s parts) leaders(process context.Context) ([]runner, error) {
	clusterCIDRs, err := config.Prefixes(s.cfg.ClusterCIDR)
	if err != nil {
		return nil, fmt.Errorf("clusterCIDR: %w", err)
	}
	metadata, err := s.api.Metadata()
	if err != nil {
		return nil, fmt.Errorf("make metadata client: %w", err)
	}
	ca, err := keys(s.cfg).CA()
	if err != nil {
		return nil, err
	}
	reserved, err := s.apiNames()
	if err != nil {
		return nil, err
	}
	list, err := controllers(controllerDeps{
		Client: s.api.Client(), Informers: s.api.Informers(), Metadata: metadata, ClusterCIDR: clusterCIDRs[0],
		ServiceCIDRs: serviceCIDRs(s.cfg), ClusterDNS: s.cfg.ClusterDNS, RootCA: ca.PEM, Signer: ca, Reserved: reserved.Owner,
		Grants:  s.grants(ca, clusterCIDRs),
		Members: s.gossip, Log: s.log, StartInformers: func() { s.api.Informers().Start(process.Done()) },
	})
	if err != nil {
		return nil, err
	}
	sched, err := scheduler.New(scheduler.Config{
		Client: s.api.Client(), Informers: s.api.Informers(), ConfigFile: s.cfg.SchedulerConfig, Log: s.log,
	})
	if err != nil {
		return nil, err
	}
	return append(list, named{name: "scheduler", run: sched.Run}), nil
}

// named makes a runner of a function.
type named struct {
	name string
	run  func(context.Context) error
}

func (n named) Name() string                  { return n.name }
func (n named) Run(ctx context.Context) error { return n.run(ctx) }
