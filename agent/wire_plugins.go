package main

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"
	registrationv1 "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/shoal-project/shoal/agent/api"
	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/metrics"
	"github.com/shoal-project/shoal/agent/node"
	"github.com/shoal-project/shoal/agent/plugins"
	"github.com/shoal-project/shoal/agent/source"
	"github.com/shoal-project/shoal/csi"
)

// apiSilence is how long a driver that registers waits for an API that is away.
const apiSilence = 10 * time.Second

// newCSINode shows the node's storage drivers to the API; nil without one.
func newCSINode(cfg *config.Config, server *api.Server, log *slog.Logger) *node.CSINode {
	if !server.Configured() {
		return nil
	}
	return &node.CSINode{
		Client:  server.Client,
		Name:    cfg.NodeName,
		Silence: apiSilence,
		Log:     log,
	}
}

// newStorageObjects is what the API says of storage drivers.
func newStorageObjects(ctx context.Context, server *api.Server, log *slog.Logger) *source.Storage {
	s := &source.Storage{Client: server.Client, Log: log}
	s.Start(ctx)
	return s
}

// newDrivers are the storage drivers that register, which shown tells the API.
func newDrivers(shown *node.CSINode, counts *metrics.Agent) *csi.Drivers {
	return &csi.Drivers{
		Observe: func(driver, method string, code codes.Code, took time.Duration) {
			counts.CSI.Observe(took, driver, method, code.String(), "false")
		},
		Publish: func(ctx context.Context, driver string, info csi.NodeInfo) error {
			if shown == nil {
				return nil
			}
			return shown.Install(ctx, node.StorageDriver{Name: driver, NodeID: info.ID, MaxVolumes: info.MaxVolumes,
				Topology: info.Topology})
		},
		Withdraw: func(driver string) {
			if shown != nil {
				shown.Uninstall(driver)
			}
		},
	}
}

// askAgain asks a driver how many volumes the node can have, since one was too many.
func askAgain(ctx context.Context, drivers *csi.Drivers, driver string, log *slog.Logger) {
	if err := drivers.Refresh(ctx, driver); err != nil && ctx.Err() == nil {
		log.Warn("a node has too many volumes, and its limit is not known", "driver", driver, "err", err)
	}
}

// newRefresher asks drivers again as often as their CSIDrivers say.
func newRefresher(drivers *csi.Drivers, storage *source.Storage, log *slog.Logger) *csi.Refresher {
	return &csi.Refresher{
		Drivers: drivers,
		Period: func(ctx context.Context, driver string) time.Duration {
			object, err := storage.CSIDriver(ctx, driver)
			if err != nil || object == nil || object.Spec.NodeAllocatableUpdatePeriodSeconds == nil {
				return 0
			}
			return time.Duration(*object.Spec.NodeAllocatableUpdatePeriodSeconds) * time.Second
		},
		Log: log,
	}
}

// newPlugins follows the programs that register with the node.
func newPlugins(b base, drivers *csi.Drivers) *plugins.Watcher {
	return &plugins.Watcher{
		Dir: filepath.Join(b.cfg.RootDir, "plugins_registry"),
		Handlers: map[string]plugins.Handler{
			registrationv1.CSIPlugin:    csiPlugins{drivers},
			registrationv1.DRAPlugin:    draPlugins{b.claims.Drivers},
			registrationv1.DevicePlugin: devicePlugins{b.exact.plugged},
		},
		Log: b.log,
	}
}

// csiPlugins has storage drivers taken.
type csiPlugins struct{ drivers *csi.Drivers }

// Register implements plugins.Handler.
func (c csiPlugins) Register(ctx context.Context, p plugins.Plugin) error {
	return c.drivers.Register(ctx, p.Name, p.Endpoint, p.Versions)
}

// Deregister implements plugins.Handler.
func (c csiPlugins) Deregister(p plugins.Plugin) { c.drivers.Deregister(p.Name, p.Endpoint) }
