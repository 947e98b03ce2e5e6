package main

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"

	"github.com/shoal-project/shoal/agent/checkpoint"
	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/container"
	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/agent/provision"
	"github.com/shoal-project/shoal/agent/quota"
	"github.com/shoal-project/shoal/agent/volume"
	"github.com/shoal-project/shoal/csi"
	"github.com/shoal-project/shoal/csi/local"
	"github.com/shoal-project/shoal/csi/locality"
)

// localStorage is the storage driver that ships with Shoal. It serves at a socket as
// any other would, so that the agent, and sidecars that somebody puts beside it, find
// nothing special about it.
type localStorage struct {
	driver   *local.Driver
	listener net.Listener
	socket   string
	// unfinished lies beside the volumes, and goes where their disk goes.
	unfinished *checkpoint.Store[provision.Unfinished]
}

// localCSI is the version of CSI that the driver speaks.
const localCSI = "1.12.0"

// openLocalStorage is nil where the node has no such driver. A node without it can
// still run all pods that do not need it.
func openLocalStorage(cfg *config.Config, log *slog.Logger) *localStorage {
	dir := cfg.VolumesDir()
	if dir == "" || cfg.Kubeconfig == "" {
		return nil
	}
	log = log.With("driver", local.Name)
	driver, err := local.New(local.Config{Directory: dir, NodeID: cfg.NodeName, Log: log})
	if err != nil {
		log.Error("this node keeps no volumes of its own; mend localVolumesDir and start the agent again", "err", err)
		return nil
	}
	unfinished, err := checkpoint.Open[provision.Unfinished](filepath.Join(dir, "unfinished"), nil, log)
	if err != nil {
		log.Error("this node keeps no volumes of its own; mend localVolumesDir and start the agent again", "err", err)
		return nil
	}
	socket := filepath.Join(cfg.RootDir, "plugins", local.Name, "csi.sock")
	l, err := local.Listen(socket)
	if err != nil {
		log.Error("this node keeps no volumes of its own; mend rootDir and start the agent again", "err", err)
		return nil
	}
	return &localStorage{driver, l, socket, unfinished}
}

// quotas limit directories of pods, and what containers write. Each is nil where the file
// system cannot: then what they take is measured.
type quotas struct {
	volumes volume.Quotas
	layers  container.Quotas
}

// openQuotas opens a file system once: its projects are given in one place.
func openQuotas(cfg *config.Config, log *slog.Logger) (q quotas) {
	volumes := openQuota(cfg.RootDir, "an emptyDir with a sizeLimit", log)
	if volumes != nil {
		q.volumes = volumes
	}
	if cfg.ContainerRuntimeEndpoint != "" {
		return q
	}
	layers := volumes
	if !host.SameDisk(cfg.RootDir, cfg.DataDir) {
		layers = openQuota(cfg.DataDir, "what a container with an ephemeral-storage limit writes", log)
	}
	if layers != nil {
		q.layers = layers
	}
	return q
}

// openQuota is nil where directories of the file system cannot be limited.
func openQuota(dir, what string, log *slog.Logger) *quota.Disk {
	disk, why, err := quota.Open(dir)
	switch {
	case err != nil:
		log.Warn("there is no hard limit: what is used is measured", "of", what, "err", err)
	case disk == nil:
		log.Info("there is no hard limit: what is used is measured", "of", what, "why", why)
	default:
		log.Info("there is a hard limit", "of", what, "by", disk.How)
	}
	return disk
}

// tasks of the driver: to serve, to be known, and to make what claims ask for.
// tellHealth has events tell of a driver's volumes with which something is wrong.
func (s *localStorage) tasks(b base, drivers *csi.Drivers, tellHealth func(driver string)) []task {
	client := &csi.Client{Driver: local.Name, Endpoint: s.socket, Observe: drivers.Observe}
	list := []task{
		{"local storage driver", func(ctx context.Context) error { return s.driver.Serve(ctx, s.listener) }},
		{"local storage driver's registration", func(ctx context.Context) error {
			return drivers.Keep(ctx, client, localCSI, func(err error) {
				b.log.Debug("the API does not know of the local storage driver yet", "err", err)
			})
		}},
	}
	if b.server.Client == nil {
		return list
	}
	p := &provision.Provisioner{
		Client: b.server.Client,
		Read: func(ctx context.Context, prefix string, path ...string) ([]byte, error) {
			// By JSON: extensions have no other form.
			return b.server.Client.Discovery().RESTClient().Get().AbsPath(append([]string{prefix}, path...)...).
				SetHeader("Accept", "application/json").DoRaw(ctx)
		},
		Node:    b.cfg.NodeName,
		Driver:  client,
		NodeUID: b.nodeUID,
		Event:   b.events.Object,
		Full:    func() { tellHealth(local.Name) },
		Records: s.unfinished,
		Log:     b.log.With("driver", locality.Driver),
	}
	return append(list, task{"local volumes", p.Run})
}
