package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shoal-project/shoal/agent/process"
	"github.com/shoal-project/shoal/coordinator/apiserver"
	"github.com/shoal-project/shoal/coordinator/auth"
	"github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/coordinator/controller/clusterdns"
	"github.com/shoal-project/shoal/coordinator/leader"
	"github.com/shoal-project/shoal/coordinator/pki"
)

// serve runs the API until apiCtx ends, and its users until ctx does or one fails, which
// then stops the API.
func serve(ctx, apiCtx context.Context, stopAPI func(), s parts) error {
	if err := s.prepare(ctx); err != nil {
		s.api.Close()
		return unlessStopped(ctx, err)
	}
	s.api.Informers().Start(apiCtx.Done())
	users, running := errgroup.WithContext(ctx)
	apiEnded := make(chan error, 1)
	go func() {
		defer close(apiEnded)
		apiEnded <- s.api.Run(apiCtx)
	}()
	for _, run := range s.users(apiCtx) {
		users.Go(func() error { return run(running) })
	}
	users.Go(func() error {
		select {
		case <-running.Done():
			return nil
		case err := <-apiEnded:
			return fmt.Errorf("API server ended: %w", err)
		}
	})
	err := users.Wait()
	if err == nil {
		s.finishStart(apiCtx)
	}
	stopAPI()
	return errors.Join(err, <-apiEnded)
}

// prepare does what must be done before anybody is served.
func (s parts) prepare(ctx context.Context) error {
	s.keys.CatchUp(ctx)
	if err := s.addStartSteps(); err != nil {
		return err
	}
	if err := s.store.CheckEncryption(ctx); err != nil {
		return err
	}
	return s.store.WaitCaches(ctx)
}

// unlessStopped drops the error of a start that was stopped before it was done:
// it tells of the stop in the words of whatever was under way.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// users are what runs beside the API on every coordinator, each until its context
// ends; the API itself lives as long as apiCtx.
func (s parts) users(apiCtx context.Context) []func(context.Context) error {
	elector := leader.Elector{
		Client:   s.api.Client(),
		Identity: leader.NewIdentity(hostName()),
		Alone:    s.store.Alone,
		Quick:    func() bool { return s.store.Embedded() && s.store.Several() },
		Log:      s.log,
	}
	var first []func(context.Context) error
	if s.members != nil {
		first = append(first, s.watchRestored, unfailing(s.members.Forget), unfailing(s.showAddress),
			unfailing(s.snapshots.Run))
	}
	if findsAddress(s.cfg) {
		first = append(first, s.followAddress)
	}
	return append(first, []func(context.Context) error{
		s.announce,
		s.gossip.Run,
		s.store.FollowEncryption,
		unfailing(s.renewKeys),
		unfailing(s.keys.Run),
		// Not earlier: an API that does not know its custom resources yet has clients come again after 5 s.
		s.onceReady(unfailing(s.policies.Run)),
		unfailing(s.auth.FollowIssuers),
		unfailing(s.auth.FollowAuthorizers),
		unfailing(process.GatherTimers),
		unfailing(process.Trim),
		s.onceReady(unfailing(s.encryptClear)),
		s.onceReady(s.endpoints.Run),
		s.onceReady(s.runGateways(apiCtx)),
		s.onceReady(func(ctx context.Context) error {
			return elector.Run(ctx, func(ctx context.Context) error { return s.lead(ctx, apiCtx) })
		}),
	}...)
}

// unfailing makes of what cannot fail what could.
func unfailing(run func(context.Context)) func(context.Context) error {
	return func(ctx context.Context) error {
		run(ctx)
		return nil
	}
}

// onceReady has run wait for the API.
func (s parts) onceReady(run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-s.ready:
			return run(ctx)
		case <-ctx.Done():
			return nil
		}
	}
}

// addStartSteps adds what the API needs before it is ready.
func (s parts) addStartSteps() error {
	dir := keys(s.cfg)
	client := s.api.Client()
	if err := s.api.OnStart(apiserver.Step{Name: "rbac/bootstrap-roles", Run: func(ctx context.Context) error {
		return auth.EnsureBootstrapPolicy(ctx, client)
	}}); err != nil {
		return err
	}
	identity, err := s.api.ShowIdentity()
	if err != nil {
		return err
	}
	system, err := s.system(dir)
	if err != nil {
		return err
	}
	steps := system.Steps(client)
	return s.api.OnStart(append(append(steps, apiserver.LeaderSteps(client)...),
		apiserver.Step{Name: "api-endpoints", Run: s.endpoints.Publish},
		apiserver.Step{Name: "cluster-dns", Run: func(ctx context.Context) error {
			// Before anybody else can ask for its address. Where somebody has it
			// since an earlier version, the controller tells them.
			if err := clusterdns.Ensure(ctx, client, s.cfg.DNSAddresses()); !apierrors.IsInvalid(err) {
				return err
			}
			return nil
		}},
		identity,
	)...)
}

// system is what the API needs to have of itself.
func (s parts) system(dir pki.Dir) (out apiserver.System, err error) {
	clientCA, err := os.ReadFile(dir.Path(pki.CAFile))
	if err != nil {
		return out, fmt.Errorf("load CA: %w", err)
	}
	frontCA, err := os.ReadFile(dir.Path("front-proxy-ca.crt"))
	if err != nil {
		return out, fmt.Errorf("load CA: %w", err)
	}
	return apiserver.System{
		Port: s.port, ServiceIP: serviceIP(s.cfg), ServiceCIDRs: serviceCIDRs(s.cfg),
		ClientCA: clientCA, FrontProxyCA: frontCA, FrontProxyNames: []string{"front-proxy-client"},
		LocalStorage: !s.cfg.NoLocalStorage,
	}, nil
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
