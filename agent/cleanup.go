package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
	corev1 "k8s.io/api/core/v1"
	criapi "k8s.io/cri-api/pkg/apis"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/beneath"
	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/checkpoint"
	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/gateway"
	"github.com/shoal-project/shoal/agent/hollow"
	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/agent/logind"
	"github.com/shoal-project/shoal/agent/metrics"
	"github.com/shoal-project/shoal/agent/network"
	"github.com/shoal-project/shoal/agent/node"
	"github.com/shoal-project/shoal/agent/pod/launch"
	"github.com/shoal-project/shoal/agent/policy"
	"github.com/shoal-project/shoal/agent/proxy"
	"github.com/shoal-project/shoal/agent/quota"
	"github.com/shoal-project/shoal/agent/runtime"
	"github.com/shoal-project/shoal/agent/volume"
	"github.com/shoal-project/shoal/csi"
	"github.com/shoal-project/shoal/csi/local"
)

// cleanupOptions say how far a cleanup goes.
type cleanupOptions struct {
	purge bool // its files too
	// grace is the longest time that containers have to end by themselves.
	grace time.Duration
}

// cleanup undoes all that an agent with this configuration made on the
// machine: pods, mounts, namespaces, interfaces, nftables, cgroups. It may be
// repeated.
func cleanup(ctx context.Context, cfg *config.Config, o cleanupOptions, log *slog.Logger) error {
	if os.Geteuid() != 0 {
		return errors.New("cleanup must run as root")
	}
	lock, err := lockToEnd(cfg, log)
	if err != nil {
		return err
	}
	defer lock.Close()
	if _, err := os.Stat(cfg.CheckpointDir()); errors.Is(err, fs.ErrNotExist) {
		log.Debug("no agent ran with this configuration since the last cleanup")
		return removeFiles(cfg, o.purge)
	}
	kept, err := openStores(cfg, log)
	if err != nil {
		log.Warn("what is kept cannot be read; the rest is cleaned up", "err", err)
		kept.nodes = hollow.Store[corev1.Node]{}
	}
	memory := node.Remember(kept.nodes, cfg.NodeName, log)
	adoptRanges(cfg, memory.Node(), log)
	links, err := openNetwork(cfg, memory, nil, log)
	if err != nil {
		log.Warn("the pod network cannot be made as it was; the rest is cleaned up", "err", err)
	}
	var errs []error
	if cfg.ContainerRuntimeEndpoint == "" {
		errs = append(errs, endContainers(ctx, cfg, links.network, kept.seal, o.grace, log))
	} else {
		errs = append(errs, tree(cfg).RemoveEmpty())
	}
	for _, file := range []string{spareKey(cfg), logind.DropIn} {
		if err := os.Remove(file); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	errs = append(errs, endKeepers(cfg), gateway.End(gatewayDir(cfg)), volume.UnmountUnder(filepath.Join(cfg.RootDir, "pods")))
	disks := volume.Manager{RootDir: cfg.RootDir, Records: kept.volumes, Log: log}
	errs = append(errs, disks.LeaveDisks(ctx))
	// Where storage drivers staged volumes, which ended with the containers, and local
	// devices were mounted.
	errs = append(errs, volume.UnmountUnder(filepath.Join(cfg.RootDir, "plugins", filepath.Dir(csi.Plugin))))
	if dir := cfg.VolumesDir(); dir != "" {
		errs = append(errs, local.Detach(dir))
	}
	if links.claim != nil { // else the names belong to another agent
		defer links.claim.Close()
		errs = append(errs, links.network.Cleanup(), policy.Cleanup(policyTable(cfg)))
		if cfg.Proxy() {
			services := newProxy(cfg, host.Facts{}, nil, &metrics.Agent{}, proxy.Status{}, nil, nil, log)
			errs = append(errs, services.Cleanup(), newDNS(cfg, nil, clients{}, nil, nil, log).Cleanup())
		}
	}
	errs = append(errs, tree(cfg).RemoveTop())
	if err := errors.Join(errs...); err != nil {
		return err // never delete files below something that is still mounted
	}
	errs = append(errs, removeEmptyDirs(cfg.RootDir))
	for _, dir := range []string{cfg.CheckpointDir(), filepath.Join(cfg.RootDir, "pods"), cfg.RunDir} {
		errs = append(errs, beneath.RemoveAll(dir))
	}
	for _, dir := range []string{devicePluginsDir(cfg), podResourcesDir(cfg)} { // plugins' own sockets are theirs
		if err := os.Remove(filepath.Join(dir, "kubelet.sock")); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	errs = append(errs, emptyDir(cfg.PodLogsDir), unlink(cfg.ContainerLogsDir), removeFiles(cfg, o.purge))
	return errors.Join(errs...)
}

// removeFiles deletes what a purge deletes beside what every cleanup does.
func removeFiles(cfg *config.Config, purge bool) error {
	if !purge {
		return nil
	}
	if err := removeSubvolumes(cfg); err != nil {
		return err
	}
	return errors.Join(removeData(cfg.DataDir), beneath.RemoveAll(checkpointsDir(cfg)), removeEmpty(cfg.PodLogsDir),
		removeEmpty(cfg.ContainerLogsDir),
		os.RemoveAll(filepath.Join(cfg.RootDir, "plugins", local.Name)),
		removeEmpty(filepath.Join(cfg.RootDir, "plugins")), removeEmpty(filepath.Join(cfg.RootDir, "plugins_registry")),
		removeEmpty(devicePluginsDir(cfg)), removeEmpty(podResourcesDir(cfg)), removeEmpty(cfg.RootDir))
}

// removeSubvolumes removes volumes that are subvolumes, where removeData would remove
// them.
func removeSubvolumes(cfg *config.Config) error {
	dir := cfg.VolumesDir()
	if !strings.HasPrefix(dir, cfg.DataDir+"/") {
		return nil
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(cfg.DataDir))
	for _, m := range mounts {
		if m.Mountpoint != cfg.DataDir && strings.HasPrefix(dir+"/", m.Mountpoint+"/") {
			return err // somebody else's disk
		}
	}
	return errors.Join(err, local.Purge(dir))
}

// removeEmptyDirs removes those that have a quota: there is more to it than to remove
// files.
func removeEmptyDirs(root string) error {
	list, err := filepath.Glob(filepath.Join(root, "pods/*/volumes/kubernetes.io~empty-dir/*"))
	errs := []error{err}
	for _, dir := range list {
		errs = append(errs, quota.Remove(dir))
	}
	return errors.Join(errs...)
}

// removeData removes the data directory, or all that is in one that is a mount
// point. What is mounted below it is somebody else's, and stays.
func removeData(dir string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return err
	}
	var below []string
	remove := beneath.RemoveAll
	for _, m := range mounts {
		if m.Mountpoint == dir {
			remove = emptyDir
		} else {
			below = append(below, m.Mountpoint)
		}
	}
	err = remove(dir)
	if errors.Is(err, beneath.ErrMounted) && len(below) > 0 {
		return fmt.Errorf("what is mounted at %s stays; unmount it and clean up again", strings.Join(below, ", "))
	}
	return err
}

// endContainers has the runtime remove everything; when it cannot be opened,
// what it left is swept away without it.
func endContainers(
	ctx context.Context, cfg *config.Config, n *network.Manager, seal *checkpoint.Keys, grace time.Duration,
	log *slog.Logger,
) error {
	groups, err := cgroup.Open(tree(cfg).Driver)
	if err != nil {
		return err
	}
	limits := openQuotas(cfg, slog.New(slog.DiscardHandler)).layers
	rc := runtimeConfig(cfg, n, limits, seal, nil, log)
	r, err := runtime.Open(ctx, rc)
	if err != nil {
		log.Warn("the container runtime cannot be opened; its leftovers are removed without it", "err", err)
		return runtime.Sweep(groups, rc)
	}
	stopContainers(ctx, r, grace, log)
	return errors.Join(r.Cleanup(ctx), r.Close(ctx))
}

// stopContainers asks all that run to end, and waits for each as long as its pod
// says, at most for limit. Who does not end in time is the cleanup's to kill.
func stopContainers(ctx context.Context, r criapi.ContainerManager, limit time.Duration, log *slog.Logger) {
	if limit <= 0 {
		return
	}
	all, err := r.ListContainers(ctx, &criv1.ContainerFilter{
		State: &criv1.ContainerStateValue{State: criv1.ContainerState_CONTAINER_RUNNING}})
	if err != nil {
		log.Warn("containers are not asked to end", "err", err)
		return
	}
	var wait sync.WaitGroup
	for _, c := range all {
		wait.Go(func() {
			if err := r.StopContainer(ctx, c.Id, int64(podGrace(c, limit)/time.Second)); err != nil {
				log.Warn("a container did not end as it was asked to", "container", c.Metadata.GetName(), "err", err)
			}
		})
	}
	wait.Wait()
}

// podGrace is how long a container's pod lets it end, at most limit.
func podGrace(c *criv1.Container, limit time.Duration) time.Duration {
	seconds, err := strconv.ParseInt(c.Annotations[launch.AnnotationPodGrace], 10, 64)
	if err != nil {
		seconds = corev1.DefaultTerminationGracePeriodSeconds // a container of somebody else
	}
	seconds = max(min(seconds, int64(limit/time.Second)), 0) // what a pod says may not fit a Duration
	return time.Duration(seconds) * time.Second
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
	if errors.Is(err, syscall.EBUSY) {
		return nil // a mount point is somebody else's
	}
	if entries, readErr := os.ReadDir(dir); readErr == nil && len(entries) > 0 {
		return nil // somebody else's files
	}
	return err
}

// unlink removes flat links whose log is gone.
func unlink(dir string) error {
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
