package main

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/shoal-project/shoal/agent/beneath"
	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/runtime"
	"github.com/shoal-project/shoal/agent/volume"
)

// cleanup undoes all that an agent with this configuration made on the
// machine: pods, mounts, namespaces, interfaces, nftables, cgroups; with purge
// its files too. It may be repeated.
func cleanup(ctx context.Context, cfg *config.Config, purge bool, log *slog.Logger) error {
	if os.Geteuid() != 0 {
		return errors.New("cleanup must run as root")
	}
	lock, err := lockData(cfg)
	if err != nil {
		return err
	}
	defer lock.Close()
	if _, err := os.Stat(cfg.CheckpointDir()); errors.Is(err, fs.ErrNotExist) {
		log.Debug("no agent ran with this configuration since the last cleanup")
		return removeFiles(cfg, purge)
	}
	a := &agent{cfg: cfg, log: log}
	if err := errors.Join(a.buildStores(ctx), a.buildNetwork(ctx)); err != nil {
		log.Warn("what is kept cannot be read; the rest is cleaned up", "error", err)
	}
	var errs []error
	if cfg.ContainerRuntimeEndpoint == "" {
		errs = append(errs, a.endContainers(ctx))
	}
	errs = append(errs, volume.UnmountUnder(filepath.Join(cfg.RootDir, "pods")))
	if a.network != nil {
		errs = append(errs, a.network.Cleanup())
	}
	if cfg.Proxy() && a.claim != nil { // else the names belong to another agent
		errs = append(errs, a.proxy().Cleanup(), a.dns().Cleanup())
	}
	errs = append(errs, a.removeCgroupRoot())
	if err := errors.Join(errs...); err != nil {
		return err // never delete files below something that is still mounted
	}
	for _, dir := range []string{cfg.CheckpointDir(), filepath.Join(cfg.RootDir, "pods"), cfg.RunDir} {
		errs = append(errs, beneath.RemoveAll(dir))
	}
	errs = append(errs, emptyDir(cfg.PodLogsDir), a.unlink(), removeFiles(cfg, purge))
	return errors.Join(errs...)
}

// removeFiles deletes what a purge deletes beside what every cleanup does.
func removeFiles(cfg *config.Config, purge bool) error {
	if !purge {
		return nil
	}
	return errors.Join(beneath.RemoveAll(cfg.DataDir), removeEmpty(cfg.PodLogsDir), removeEmpty(cfg.ContainerLogsDir),
		removeEmpty(filepath.Join(cfg.RootDir, "plugins")), removeEmpty(filepath.Join(cfg.RootDir, "plugins_registry")), removeEmpty(cfg.RootDir))
}

// endContainers has the runtime remove everything; when it cannot be opened,
// what it left is swept away without it.
func (a *agent) endContainers(ctx context.Context) error {
	groups, err := cgroup.Open(a.driver())
	if err != nil {
		return err
	}
	rc := a.runtimeConfig()
	r, err := runtime.Open(ctx, rc)
	if err != nil {
		a.log.Warn("the container runtime cannot be opened; its leftovers are removed without it", "error", err)
		return runtime.Sweep(groups, rc)
	}
	return errors.Join(r.Cleanup(ctx), r.Close(ctx))
}

// removeCgroupRoot removes the parent of the pods' cgroups when it was named in
// the configuration and nobody else uses it.
func (a *agent) removeCgroupRoot() error {
	path := a.cgroupRoot()
	if path == "/" {
		return nil
	}
	groups, err := cgroup.Open(a.driver())
	if err != nil {
		return err
	}
	if len(groups.List(path)) > 0 {
		return nil
	}
	return groups.Delete(path)
}

func emptyDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		errs = append(errs, beneath.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return errors.Join(errs...)
}

func removeEmpty(dir string) error {
	err := os.Remove(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist) || err == nil {
		return nil
	}
	if entries, readErr := os.ReadDir(dir); readErr == nil && len(entries) > 0 {
		return nil // somebody else's files
	}
	return err
}

// unlink removes flat links whose log is gone.
func (a *agent) unlink() error {
	dir := a.cfg.ContainerLogsDir
	if dir == "" || dir == "-" {
		return nil
	}
	links, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil {
		return err
	}
	for _, l := range links {
		if _, err := os.Stat(l); errors.Is(err, fs.ErrNotExist) {
			os.Remove(l)
		}
	}
	return nil
}
