package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	cri "k8s.io/cri-api/pkg/apis"

	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/checkpoint"
	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/agent/network"
	"github.com/shoal-project/shoal/agent/node"
	"github.com/shoal-project/shoal/agent/pod"
	"github.com/shoal-project/shoal/agent/probe"
	"github.com/shoal-project/shoal/agent/process"
	podrecord "github.com/shoal-project/shoal/agent/record"
	"github.com/shoal-project/shoal/agent/runtime"
	"github.com/shoal-project/shoal/agent/service"
	"github.com/shoal-project/shoal/agent/serving"
	"github.com/shoal-project/shoal/agent/source"
	"github.com/shoal-project/shoal/agent/status"
	"github.com/shoal-project/shoal/agent/volume"
)

// agent is everything that the node runs, wired.
type agent struct {
	cfg   *config.Config
	log   *slog.Logger
	facts node.Facts
	claim io.Closer // on the names of bridge and table, while the process lives
	// manager hears that the process lives.
	manager process.ServiceManager
	// cutOff is true once pods started without the API.
	cutOff atomic.Bool

	rest    *rest.Config
	client  kubernetes.Interface // nil without a kubeconfig
	cgroups *cgroup.Root
	pids    pidLimits
	builtin *runtime.Runtime // nil with an outside runtime
	runtime cri.RuntimeService
	images  cri.ImageManagerService
	version string

	seal     *checkpoint.Keys // of all that is kept; nil on a hollow node
	records  store[podrecord.Pod]
	nodes    store[v1.Node]
	pulled   store[podrecord.Image] // nil on a hollow node
	objects  *source.Objects
	tokens   *volume.TokenCache
	network  *network.Manager // nil on a hollow node
	gossip   *gossip.Group
	services *service.Source
	api      *source.API
	static   *source.Static
	volumes  volumes
	probes   *probe.Manager
	status   *status.Manager
	pods     *pod.Manager
	node     *node.Manager
	events   *recorder
	leaving  atomic.Bool
	ended    chan struct{}
	saved    atomic.Pointer[v1.Node]
	// serving is the certificate of the kubelet's API; certificates keeps it, nil
	// when the cluster does not.
	serving      func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	certificates *serving.Manager

	// What differs where the node's kernel is not used (hollow.go).
	adjust      func(*rest.Config)
	measure     func() map[v1.NodeConditionType]bool
	setPodCIDRs func([]netip.Prefix) error
}

// store keeps values over restarts.
type store[T any] interface {
	Get(key string) (*T, error)
	All() (map[string]*T, error)
	Put(key string, v *T) error
	Delete(key string) error
	Close()
}

// volumes makes what pods mount.
type volumes interface {
	pod.Volumes
	Ensure(ctx context.Context, p *v1.Pod) error
	Release(ctx context.Context, p *v1.Pod) error
	Refresh(ctx context.Context, p *v1.Pod) error
	Changed(namespace string)
	Run(ctx context.Context) error
}

// task is something that runs as long as the agent.
type task struct {
	name string
	run  func(context.Context) error
}

// run builds the agent and runs it until ctx ends; pods are left running.
func run(ctx context.Context, cfg *config.Config, log *slog.Logger) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	manager, err := process.TakeServiceManager()
	if err != nil {
		return err
	}
	a := &agent{cfg: cfg, log: log, manager: manager}
	if err := a.build(ctx); err != nil {
		return err
	}
	defer a.close()
	var wg sync.WaitGroup
	start(ctx, &wg, a.tasks(), cancel)
	untilEnd(ctx, manager)
	wait(&wg, stopWait)
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// start runs tasks until ctx ends; the first that fails ends all.
func start(ctx context.Context, wg *sync.WaitGroup, tasks []task, cancel context.CancelCauseFunc) {
	for _, t := range tasks {
		wg.Go(func() {
			if err := t.run(ctx); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("%s: %w", t.name, err))
			}
		})
	}
}

// untilEnd waits for the end of ctx; the service manager is told that the process
// is up, and that it ends.
func untilEnd(ctx context.Context, manager process.ServiceManager) {
	manager.Ready()
	<-ctx.Done()
	manager.Stopping()
}

// stopWait is how long tasks may take to end. client-go's watches do not hear
// of the end while they pause between tries.
const stopWait = time.Second

func wait(wg *sync.WaitGroup, limit time.Duration) {
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(limit):
	}
}

// build makes every part, in the order in which they need each other.
func (a *agent) build(ctx context.Context) error {
	for _, part := range []func(context.Context) error{
		a.buildDirs, a.buildStores, a.buildClient, a.buildNetwork, a.buildRuntime,
		a.buildGossip, a.buildServices, a.buildVolumes, a.buildPods, a.buildServing, a.buildNode,
	} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return a.restore(ctx)
}

// tasks is what runs as long as the agent.
func (a *agent) tasks() []task {
	list := []task{
		{"pods", a.pods.Run},
		{"static pods", a.static.Run},
		{"volumes", a.volumes.Run},
		{"services", a.services.Run},
		{"offline start", a.unhold},
	}
	if a.builtin != nil {
		list = append(list, task{"container runtime", a.builtin.Run})
	}
	if a.client != nil {
		list = append(list, task{"pods of this node", a.api.Run}, task{"node", a.node.Run})
	}
	if a.gossip != nil {
		list = append(list, task{"gossip", a.gossip.Run}, task{"gossip identity", a.followIdentity}, task{"backends", a.avoidDead},
			task{"routes", func(ctx context.Context) error { return a.network.Run(ctx, a.gossip) }})
	}
	if a.cfg.Proxy() {
		list = append(list, task{"proxy", func(ctx context.Context) error { return a.proxy().Run(ctx, a.services) }})
		if len(a.cfg.ClusterDNS) > 0 {
			list = append(list, task{"dns", func(ctx context.Context) error { return a.dns().Run(ctx) }})
		}
	}
	if len(a.shutdownPeriods()) > 0 {
		list = append(list, task{"shutdown", a.leave})
	}
	if a.certificates != nil {
		list = append(list, task{"serving certificate", a.certificates.Run})
	}
	if a.cfg.Port > 0 {
		list = append(list, task{"kubelet API", a.serve})
	}
	list = append(list, task{"memory", func(ctx context.Context) error { process.Trim(ctx); return nil }})
	return append(list, task{"log rotation", a.rotate}, task{"watchdog", a.watchdog})
}

func (a *agent) close() {
	a.records.Close()
	a.nodes.Close()
	a.pulled.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := a.runtime.Close(ctx); err != nil {
		a.log.Warn("container runtime is not closed in order", "error", err)
	}
}
